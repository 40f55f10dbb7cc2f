"""One decoder for the Llama family, over explicit params.

Params are a plain dict::

    embed f[V, E], final_norm f[E], head f[E, V] unless tied,
    layers: a list of dicts (unrolled), or one dict of stacked arrays (scanned)

Matrices may be kept in fewer bits instead (see `pallas_kernels.linear`). Packed, an
output a row, they are those of the layers, embed and head, unrolled, and gate and up
are one. Tiled, embed is [E, V], and an array of its own only where the head is not tied
to it.

Both forms run the same ``Layer``; the form of ``layers`` is the choice. Unrolled is
faster on CPU, where scanning copies each layer's slice; scanned compiles in constant
time for big models on accelerators.

A layer's projections are kept fused: ``qkv`` f[E, G * (R + 2) * D] holds, for each of
the G kv heads, its R query heads, then key, then value, so a mesh can split it by kv
head; ``gate_up`` is a list of the two, f[E, I] each: of an array of both XLA would cut
each out, layer for layer. The last two axes are those of a product, as accelerators lay
matrices out.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from pallas_kernels import linear as linear_lib
from pallas_kernels.glu import glu
from pallas_kernels.rms_norm import rms_norm
from pallas_kernels.rotary import split_heads
from pallas_kernels.tree_attention import tree_attention
from specjax.core import axes
from specjax.core import tree as tree_lib
from specjax.models import cache as cache_lib
from specjax.models import config as config_lib
from specjax.models import rope

Params = Any

_HEADS = ("batch", "kv_heads")
_NORMAL = nn.initializers.normal(0.02)
# Names of the axes of each param; one of stacked layers has an axis more, in front.
AXES: Mapping[str, axes.Names] = {
    "embed": ("vocab", "embed"),
    "head": ("embed", "vocab"),
    "qkv": ("embed", "kv_heads"),  # kv heads, what is theirs and sizes in one axis
    "qkv_bias": ("kv_heads", "heads", "size"),
    "out": ("kv_heads", "embed"),
    "gate_up": ("embed", "mlp"),  # of each
    "gate_up_bias": ("half", "mlp"),
    "down": ("mlp", "embed"),
}


class Shared(NamedTuple):
    """What every layer of one forward shares."""

    length: jax.Array  # i32[B], cached positions
    depth: jax.Array  # i32[B, N]
    mask: jax.Array  # bool[B, N, N]


class Layer(nn.Module):
    """Attention and MLP with residuals; reads the cache, returns new rows."""

    config: config_lib.ModelConfig

    @nn.compact
    def __call__(self, x, cos, sin, shared, cache, window, layer):
        """Runs the layer on tree nodes.

        Args:
          x: f[B, N, E].
          cos, sin: f32[B, N, D / 2].
          shared: what all layers share.
          cache: of all layers.
          window: int or i32[], 0 for none.
          layer: i32[] or int, which of the layers this is.

        Returns:
          (f[B, N, E], (k, v) f[B, G, N, D] each).
        """
        h = self._norm("attn_norm", x)
        attended, rows = self._attention(h, cos, sin, shared, cache, window, layer)
        if self.config.post_norms:
            attended = self._norm("post_attn_norm", attended)
        x = x + attended
        out = self._mlp(self._norm("mlp_norm", x))
        if self.config.post_norms:
            out = self._norm("post_mlp_norm", out)
        return x + out, rows

    def _attention(self, h, cos, sin, shared, cache, window, layer):
        """Attention over cache and tree, and the new rows."""
        c = self.config
        rows, nodes, _ = h.shape
        heads = c.num_heads * c.head_size
        parts = (c.num_kv_heads, c.group + 2, c.head_size)
        weight = self._weight("qkv", h, (c.embed_size, math.prod(parts)))
        qkv = linear_lib.linear(h, weight)
        # Without the barrier XLA on TPU turns the matrix around to split its outputs.
        qkv = jax.lax.optimization_barrier(qkv)
        qkv = qkv.reshape(rows, nodes, *parts)  # f[B, N, G, R + 2, D]
        if c.qkv_bias:
            qkv = qkv + self._bias("qkv_bias", h, parts)
        if c.qk_norm:
            q, k, v = jnp.split(qkv, [c.group, c.group + 1], axis=3)
            q, k = self._norm("q_norm", q), self._norm("k_norm", k)
            qkv = jnp.concatenate([q, k, v], axis=3)
        q, k, v = split_heads(qkv, cos, sin)
        mixed = axes.per_device(
            functools.partial(_attend, c),
            (_HEADS, _HEADS, _HEADS, cache_lib.NAMES, ("batch",), (), ()),
            ("batch", "nodes", "kv_heads"),
        )(q, k, v, cache, shared, window, layer)
        weight = self._weight("out", h, (heads, c.embed_size))
        attended = linear_lib.linear(mixed.reshape(rows, nodes, heads), weight)
        if c.output_bias:
            attended = attended + self._bias("out_bias", h, (c.embed_size,))
        return attended, (k, v)

    def _mlp(self, h):
        c = self.config
        both = self._weight("gate_up", h, (c.embed_size, c.mlp_size), init=_two)
        gate_up = _gate_and_up(h, both)
        if c.mlp_bias:
            gate_up = gate_up + self._bias("gate_up_bias", h, (2, c.mlp_size))
        gated = glu(gate_up, activation=c.activation)
        weight = self._weight("down", h, (c.mlp_size, c.embed_size))
        out = linear_lib.linear(gated, weight)
        return out + self._bias("down_bias", h, (c.embed_size,)) if c.mlp_bias else out

    def _weight(self, name, like, shape, init: Any = _NORMAL):
        """A matrix in whichever form it is kept."""
        if self.is_initializing():
            return self.param(name, init, shape, like.dtype)
        return self.get_variable("params", name)

    def _bias(self, name, like, shape):
        made = self.param(name, nn.initializers.zeros, shape, like.dtype)
        return made[None, None]

    def _norm(self, name, value):
        scale = self.param(name, nn.initializers.ones, value.shape[-1:], value.dtype)
        return rms_norm(value, scale, eps=self.config.norm_eps)


def _two(key, shape, dtype):
    return list(_NORMAL(key, (2, *shape), dtype))


def _attend(config, q, k, v, cache, shared, window, layer):
    return tree_attention(
        q,
        k,
        v,
        cache.k,
        cache.v,
        length=shared.length,
        depth=shared.depth,
        mask=shared.mask,
        scale=config.scale,
        window=window,
        cap=config.attention_cap,
        layer=layer,
    )


def _gate_and_up(x, weight):
    """Both f[B, N, 2, I], of packed weights of the two, or of a list of them."""
    if isinstance(weight, linear_lib.Packed):
        both = linear_lib.linear(x, weight)
        return both.reshape(*both.shape[:-1], 2, -1)
    return jnp.stack([linear_lib.linear(x, one) for one in weight], axis=-2)


def forward(
    config: config_lib.ModelConfig,
    params: Params,
    tree: tree_lib.TokenTree,
    cache: cache_lib.KVCache,
    start: jax.Array,
    features: tuple[int, ...] = (),
) -> tuple[jax.Array, jax.Array | None, cache_lib.KVCache]:
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
      order asked for or None, and the new rows f[B, layers, G, N, D].
    """
    x = linear_lib.take_rows(params["embed"], tree.token)  # f[B, N, E]
    x = x.astype(params["final_norm"].dtype)  # rows in fewer bits come as float32
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


@functools.partial(jax.jit, static_argnums=(0, 1))
def _layer(config, window, params, x, cos, sin, shared, cache, layer):
    """Traced once for all layers that differ in their weights only."""
    return Layer(config).apply(
        {"params": params}, x, cos, sin, shared, cache, window, layer
    )


def _unrolled(config, layers, x, cos, sin, shared, cache, features):
    outputs, keys, values = {}, [], []
    for i, layer_params in enumerate(layers):
        table = rope.table_of_layer(config, i)
        x, (k, v) = _layer(
            config,
            config.window(i),
            layer_params,
            x,
            cos[table],
            sin[table],
            shared,
            cache,
            jnp.int32(i),
        )
        keys.append(k)
        values.append(v)
        if i in features:
            outputs[i] = x
    return (
        x,
        outputs,
        cache_lib.KVCache(jnp.stack(keys, axis=1), jnp.stack(values, axis=1)),
    )


def _scanned(config, layers, x, cos, sin, shared, cache, features):
    count = config.num_layers
    table = jnp.asarray([rope.table_of_layer(config, i) for i in range(count)])
    window = jnp.asarray([config.window(i) for i in range(count)], jnp.int32)
    plain = not any(config.windows)

    def body(x, per_layer):
        layer_params, index, table, window = per_layer
        out: Any = Layer(config).apply(
            {"params": linear_lib.at_layer(layers, layer_params, index)},
            x,
            cos[table],
            sin[table],
            shared,
            cache,
            0 if plain else window,
            index,
        )
        x, (k, v) = out
        return x, (
            cache_lib.KVCache(k, v),
            x if any(i >= 0 for i in features) else None,
        )

    index = jnp.arange(count, dtype=jnp.int32)
    sliced = linear_lib.without_tiled(layers)
    x, (rows, outputs) = jax.lax.scan(body, x, (sliced, index, table, window))
    chosen = {} if outputs is None else {i: outputs[i] for i in features if i >= 0}
    rows = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), rows)
    return x, chosen, rows


def head(
    config: config_lib.ModelConfig, params: Params, hidden: jax.Array
) -> jax.Array:
    """Logits f32[B, V] of hidden f[B, E]."""
    weight = params["embed" if config.tied_head else "head"]
    if isinstance(weight, linear_lib.Packed | linear_lib.Tiled):
        logits = linear_lib.linear(hidden, weight, dtype=jnp.float32)
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


def init_params(
    config: config_lib.ModelConfig, key: jax.Array, dtype: jnp.dtype = jnp.float32
) -> Params:
    """Random params in the unrolled form; `jax.eval_shape` of it gives the shapes."""
    keys = jax.random.split(key, config.num_layers + 2)
    half = config.head_size // 2
    x = jnp.zeros((1, 1, config.embed_size), dtype)
    angle = jnp.zeros((1, 1, half), jnp.float32)
    empty = cache_lib.init(
        dataclasses.replace(config, num_layers=1, windows=()), 1, 1, dtype
    )
    none = jnp.zeros((1,), jnp.int32)
    shared = Shared(none, none[:, None], jnp.ones((1, 1, 1), jnp.bool_))

    def layer(key):
        made = Layer(config).init(key, x, angle, angle, shared, empty, 0, 0)
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


def param_specs(mesh: Any, params: Params) -> Params:
    """How a mesh splits params: the same tree of PartitionSpec.

    Args:
      mesh: concrete or abstract.
      params: arrays or their shapes, in either form.
    """
    stacked = isinstance(params["layers"], dict)

    def of_leaf(path, _):
        in_stack = stacked and path[0].key == "layers"
        at = 1 if in_stack else 2 if path[0].key == "layers" else 0
        names = axes_of(path[at].key, path[at + 1 :])
        return axes.spec(mesh, ("layers", *names) if in_stack else names)

    return jax.tree_util.tree_map_with_path(of_leaf, params)


def axes_of(param: str, path: tuple = ()) -> axes.Names:
    """Names of the axes of an array of a param.

    Args:
      param: its name.
      path: to the array in it, as `jax.tree_util` has it; () if it is one.
    """
    names = AXES.get(param, ())
    field = getattr(path[-1], "name", None) if path else None
    if field is None:
        return names
    matrix = names[::-1] if param == "embed" else names  # of a Tiled one
    return matrix if field == "whole" else (None, None, matrix[-1])


def stack_layers(params: Params) -> Params:
    """Params in the scanned form, from the unrolled one."""
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params["layers"])
    return {**params, "layers": stacked}
