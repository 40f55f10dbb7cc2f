"""One decoder for the Llama family, over explicit params.

Params are a plain dict::

    embed f[V, E], final_norm f[E], head f[E, V] unless tied,
    layers: a list of dicts (unrolled), or one dict of stacked arrays (scanned)

Unrolled, the matrices of the layers and embed and head may be packed instead (see
`pallas_kernels.linear`): kept as the checkpoint stores them, an output a row.

Both forms run the same ``Layer``; the form of ``layers`` is the choice. Unrolled is
faster on CPU, where scanning copies each layer's slice; scanned compiles in constant
time for big models on accelerators.

A layer's projections are kept fused: ``qkv`` f[E, G, R + 2, D] holds, for each of the
G kv heads, its R query heads, then key, then value, so a mesh can split it by kv head;
``gate_up`` is f[E, 2, I].
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from pallas_kernels import linear as linear_lib
from pallas_kernels.rms_norm import rms_norm
from pallas_kernels.tree_attention import tree_attention
from specjax.core import tree as tree_lib
from specjax.models import config as config_lib
from specjax.models import rope

Params = Any


class KVCache(NamedTuple):
    """Keys and values of committed positions.

    Unrolled: one array f[B, G, S, D] a layer. Scanned: one array
    f[layers, B, G, S, D].
    """

    k: tuple[jax.Array, ...] | jax.Array
    v: tuple[jax.Array, ...] | jax.Array


class Shared(NamedTuple):
    """What every layer of one forward shares."""

    length: jax.Array  # i32[B], cached positions
    depth: jax.Array  # i32[B, N]
    mask: jax.Array  # bool[B, N, N]


class Layer(nn.Module):
    """Attention and MLP with residuals; reads the cache, returns new rows."""

    config: config_lib.ModelConfig

    @nn.compact
    def __call__(self, x, cos, sin, shared, k_cache, v_cache, window, layer=None):
        """Runs the layer on tree nodes.

        Args:
          x: f[B, N, E].
          cos, sin: f32[B, N, D / 2].
          shared: what all layers share.
          k_cache, v_cache: f[B, G, S, D], or stacked with ``layer``.
          window: int or i32[], 0 for none.
          layer: i32[] into stacked caches, or None.

        Returns:
          (f[B, N, E], (k, v) f[B, G, N, D] each).
        """
        c = self.config
        rows, nodes, _ = x.shape
        heads = c.num_heads * c.head_size
        normal = nn.initializers.normal(0.02)

        def weight(name, *shape):
            if self.is_initializing():
                return self.param(name, normal, shape, x.dtype)
            return self.get_variable("params", name)  # an array, or packed

        def norm(name, value, size=c.embed_size):
            scale = self.param(name, nn.initializers.ones, (size,), x.dtype)
            return rms_norm(value, scale, eps=c.norm_eps)

        def bias(name, *shape):
            made = self.param(name, nn.initializers.zeros, shape, x.dtype)
            return made[None, None]

        h = norm("attn_norm", x)
        parts = (c.num_kv_heads, c.group + 2, c.head_size)
        qkv = linear_lib.linear(h, weight("qkv", c.embed_size, *parts))
        qkv = qkv.reshape(rows, nodes, *parts)  # f[B, N, G, R + 2, D]
        if c.qkv_bias:
            qkv = qkv + bias("qkv_bias", *parts)
        q, k, v = jnp.split(qkv, [c.group, c.group + 1], axis=3)
        if c.qk_norm:
            q = norm("q_norm", q, c.head_size)
            k = norm("k_norm", k, c.head_size)
        q = q.transpose(0, 2, 3, 1, 4)  # f[B, G, R, N, D]
        k = k[:, :, :, 0].transpose(0, 2, 1, 3)  # f[B, G, N, D]
        v = v[:, :, :, 0].transpose(0, 2, 1, 3)
        q = rope.rotate(q, cos[:, None, None], sin[:, None, None])
        k = rope.rotate(k, cos[:, None], sin[:, None])
        mixed = tree_attention(
            q,
            k,
            v,
            k_cache,
            v_cache,
            length=shared.length,
            depth=shared.depth,
            mask=shared.mask,
            scale=c.scale,
            window=window,
            cap=c.attention_cap,
            layer=layer,
        )
        mixed = mixed.transpose(0, 3, 1, 2, 4).reshape(rows, nodes, heads)
        attended = linear_lib.linear(mixed, weight("out", heads, c.embed_size))
        if c.output_bias:
            attended = attended + bias("out_bias", c.embed_size)
        if c.post_norms:
            attended = norm("post_attn_norm", attended)
        x = x + attended

        h = norm("mlp_norm", x)
        gate_up = linear_lib.linear(h, weight("gate_up", c.embed_size, 2, c.mlp_size))
        gate_up = gate_up.reshape(rows, nodes, 2, c.mlp_size)
        if c.mlp_bias:
            gate_up = gate_up + bias("gate_up_bias", 2, c.mlp_size)
        gate, up = gate_up[:, :, 0], gate_up[:, :, 1]
        if c.activation == "silu":
            gate = jax.nn.silu(gate)
        else:
            gate = jax.nn.gelu(gate, approximate=True)
        out = linear_lib.linear(gate * up, weight("down", c.mlp_size, c.embed_size))
        if c.mlp_bias:
            out = out + bias("down_bias", c.embed_size)
        if c.post_norms:
            out = norm("post_mlp_norm", out)
        return x + out, (k, v)


def init_cache(
    config: config_lib.ModelConfig,
    rows: int,
    capacity: int,
    dtype: jnp.dtype,
    scanned: bool,
) -> KVCache:
    """An empty cache.

    Args:
      config: of the model.
      rows: B.
      capacity: S, most positions.
      dtype: of keys and values.
      scanned: whether layers are stacked.
    """
    shape = (rows, config.num_kv_heads, capacity, config.head_size)
    if scanned:
        stacked = (config.num_layers, *shape)
        return KVCache(jnp.zeros(stacked, dtype), jnp.zeros(stacked, dtype))

    def buffers():
        return tuple(jnp.zeros(shape, dtype) for _ in range(config.num_layers))

    return KVCache(buffers(), buffers())


def forward(
    config: config_lib.ModelConfig,
    params: Params,
    tree: tree_lib.TokenTree,
    cache: KVCache,
    start: jax.Array,
    features: tuple[int, ...] = (),
) -> tuple[jax.Array, jax.Array | None, KVCache]:
    """Scores every node of a tree; reads the cache, writes nothing.

    Args:
      config: of the model.
      params: see the module's text.
      tree: N nodes a row.
      cache: committed positions.
      start: i32[B], positions that the cache holds.
      features: layers whose outputs are wanted, static; ``i`` is the output of layer
        i, -1 the final hidden state after the last norm.

    Returns:
      hidden f[B, N, E] after the final norm, features f[B, N, F] concatenated in the
      order asked for or None, and the new rows f[B, G, N, D] in the cache's form.
    """
    x = linear_lib.take_rows(params["embed"], tree.token)  # f[B, N, E]
    if config.embed_scale != 1.0:
        x = x * jnp.asarray(config.embed_scale, x.dtype)
    cos, sin = rope.tables(config, start[:, None] + tree.depth)
    # Without the barrier XLA computes the tables again in every layer.
    cos, sin, mask = jax.lax.optimization_barrier(
        (cos, sin, tree_lib.ancestor_mask(tree))
    )
    shared = Shared(start, tree.depth, mask)
    layers = params["layers"]
    if isinstance(layers, dict):
        x, outputs, rows = _scanned(
            config, layers, x, cos, sin, shared, cache, features
        )
    else:
        x, outputs, rows = _unrolled(
            config, layers, x, cos, sin, shared, cache, features
        )
    hidden = rms_norm(x, params["final_norm"], eps=config.norm_eps)
    if not features:
        return hidden, None, rows
    chosen = [hidden if i == -1 else outputs[i] for i in features]
    return hidden, jnp.concatenate(chosen, axis=-1), rows


def _unrolled(config, layers, x, cos, sin, shared, cache, features):
    outputs, keys, values = {}, [], []
    for i, layer_params in enumerate(layers):
        table = rope.table_of_layer(config, i)
        x, (k, v) = Layer(config).apply(
            {"params": layer_params},
            x,
            cos[table],
            sin[table],
            shared,
            cache.k[i],
            cache.v[i],
            config.window(i),
        )
        keys.append(k)
        values.append(v)
        if i in features:
            outputs[i] = x
    return x, outputs, KVCache(tuple(keys), tuple(values))


def _scanned(config, layers, x, cos, sin, shared, cache, features):
    count = config.num_layers
    table = jnp.asarray([rope.table_of_layer(config, i) for i in range(count)])
    window = jnp.asarray([config.window(i) for i in range(count)], jnp.int32)
    plain = not any(config.windows)

    def body(x, per_layer):
        layer_params, index, table, window = per_layer
        out: Any = Layer(config).apply(
            {"params": layer_params},
            x,
            cos[table],
            sin[table],
            shared,
            cache.k,
            cache.v,
            0 if plain else window,
            index,
        )
        x, (k, v) = out
        return x, (KVCache(k, v), x if any(i >= 0 for i in features) else None)

    index = jnp.arange(count, dtype=jnp.int32)
    x, (rows, outputs) = jax.lax.scan(body, x, (layers, index, table, window))
    chosen = {} if outputs is None else {i: outputs[i] for i in features if i >= 0}
    return x, chosen, rows


def head(
    config: config_lib.ModelConfig, params: Params, hidden: jax.Array
) -> jax.Array:
    """Logits f32[B, V] of hidden f[B, E]."""
    weight = params["embed" if config.tied_head else "head"]
    if isinstance(weight, linear_lib.Packed):
        logits = linear_lib.linear(hidden, weight).astype(jnp.float32)
    else:
        inputs = 1 if config.tied_head else 0
        logits = jax.lax.dot_general(
            hidden,
            weight,
            (((1,), (inputs,)), ((), ())),
            preferred_element_type=jnp.float32,
        )
    if config.final_cap:
        logits = config.final_cap * jnp.tanh(logits / config.final_cap)
    return logits


def commit(
    cache: KVCache, rows: KVCache, start: jax.Array, count: jax.Array
) -> KVCache:
    """Writes the first ``count`` rows at ``start``; what does not fit is dropped.

    Args:
      cache: f[..., B, G, S, D].
      rows: f[..., B, G, L, D], the path's.
      start: i32[B].
      count: i32[B].
    """
    batch, slots = start.shape[0], jax.tree.leaves(cache)[0].shape[-2]
    length = jax.tree.leaves(rows)[0].shape[-2]
    if batch == 1 and length <= slots:
        return jax.tree.map(
            lambda buffer, new: _write_window(buffer, new, start[0], count[0]),
            cache,
            rows,
        )
    step = jnp.arange(length, dtype=jnp.int32)[None]
    at = jnp.where(step < count[:, None], start[:, None] + step, slots)  # i32[B, L]

    def write(buffer, new):  # f[B, G, S, D], f[B, G, L, D]
        return jax.vmap(lambda b, i, n: b.at[:, i].set(n, mode="drop"))(buffer, at, new)

    if jax.tree.leaves(cache)[0].ndim == 5:
        write = jax.vmap(write)
    return jax.tree.map(write, cache, rows)


def _write_window(
    buffer: jax.Array, new: jax.Array, start: jax.Array, count: jax.Array
) -> jax.Array:
    """``commit`` of a batch of one: rewrites a window of L slots in place.

    On CPU a scatter is a loop over its rows; this is three copies of L rows. Near the
    end of the buffer the window begins before ``start`` and the rows are shifted.
    """
    length = new.shape[-2]
    begin = jnp.clip(start, 0, buffer.shape[-2] - length)
    shift = jnp.minimum(start - begin, length)
    spare = [(0, 0)] * (new.ndim - 2) + [(length, 0), (0, 0)]
    moved = jax.lax.dynamic_slice_in_dim(
        jnp.pad(new, spare), length - shift, length, axis=-2
    )
    source = jnp.arange(length, dtype=jnp.int32) - shift
    inside = (source >= 0) & (source < count)
    window = jax.lax.dynamic_slice_in_dim(buffer, begin, length, axis=-2)
    shape = (1,) * (new.ndim - 2) + (length, 1)
    blended = jnp.where(inside.reshape(shape), moved, window)
    return jax.lax.dynamic_update_slice_in_dim(buffer, blended, begin, axis=-2)


def pad(rows: KVCache, slots: int) -> KVCache:
    """Rows f[..., B, G, N, D] padded to ``slots`` nodes."""

    def widen(leaf):
        spare = ((0, 0),) * (leaf.ndim - 2) + ((0, slots - leaf.shape[-2]), (0, 0))
        return jnp.pad(leaf, spare)

    return jax.tree.map(widen, rows)


def select(rows: KVCache, path_slot: jax.Array) -> KVCache:
    """Rows f[..., B, G, L, D] of the path i32[B, L]."""

    def pick(leaf):
        index = path_slot[:, None, :, None]  # i32[B, 1, L, 1]
        if leaf.ndim == 5:
            index = index[None]
        return jnp.take_along_axis(leaf, index, axis=-2)

    return jax.tree.map(pick, rows)


def init_params(
    config: config_lib.ModelConfig, key: jax.Array, dtype: jnp.dtype = jnp.float32
) -> Params:
    """Random params in the unrolled form; `jax.eval_shape` of it gives the shapes."""
    keys = jax.random.split(key, config.num_layers + 2)
    half = config.head_size // 2
    x = jnp.zeros((1, 1, config.embed_size), dtype)
    angle = jnp.zeros((1, 1, half), jnp.float32)
    empty = jnp.zeros((1, config.num_kv_heads, 1, config.head_size), dtype)
    none = jnp.zeros((1,), jnp.int32)
    shared = Shared(none, none[:, None], jnp.ones((1, 1, 1), jnp.bool_))

    def layer(key):
        made = Layer(config).init(key, x, angle, angle, shared, empty, empty, 0)
        return made["params"]

    params = {
        "embed": 0.02
        * jax.random.normal(keys[0], (config.vocab_size, config.embed_size), dtype),
        "layers": [layer(key) for key in keys[2:]],
        "final_norm": jnp.ones((config.embed_size,), dtype),
    }
    if not config.tied_head:
        shape = (config.embed_size, config.vocab_size)
        params["head"] = 0.02 * jax.random.normal(keys[1], shape, dtype)
    return params


def stack_layers(params: Params) -> Params:
    """Params in the scanned form, from the unrolled one."""
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params["layers"])
    return {**params, "layers": stacked}
