"""Whole decode programs, rounds in a loop over scanned layers, as cases to compile."""

import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp

import specjax
from benchmarks.tpu import kernels
from specjax.decoding import programs
from specjax.models import config as config_lib
from specjax.models import decoder
from specjax.models import model as model_lib

SMOLLM2 = config_lib.ModelConfig(
    family="llama",
    vocab_size=49152,
    embed_size=576,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_size=64,
    mlp_size=1536,
    max_context=8192,
    rope_theta=100_000.0,
    tied_head=True,
)
# Rounds by name: model, rows, capacity, and the chip that must hold them.
# A model that takes several chips belongs here with its mesh and sharding rules.
ROUNDS = {"smollm2-135m": (SMOLLM2, 1, 2048, "v5e")}


def cases(chip: str) -> Iterator[kernels.Case]:
    """The rounds for a chip."""
    for name, (config, rows, capacity, on) in ROUNDS.items():
        if on == chip:
            yield case(name, config, rows, capacity)


def case(
    name: str, config: config_lib.ModelConfig, rows: int, capacity: int
) -> kernels.Case:
    """Rounds of prompt lookup until every row has finished.

    Args:
      name: of the model.
      config: its shapes.
      rows: B.
      capacity: S.
    """
    model = model_lib.Model(config=config, dtype="bfloat16")
    drafter = specjax.drafters.prompt_lookup()
    recipe = specjax.build(model, drafter, max_new_tokens=128).recipe

    def weights(key):
        params = decoder.init_params(config, key, jnp.dtype("bfloat16"))
        return decoder.stack_layers(params)

    def state(params):
        return programs.blank(recipe, params, rows, capacity)

    def decode(params, state, sampling):
        return programs.decode(recipe, params, state, sampling, jnp.int32(capacity))

    target = jax.eval_shape(weights, jax.eval_shape(lambda: jax.random.key(0)))
    params = {"target": target, "drafter": {}, "verifier": {}}
    blank = jax.eval_shape(state, params)
    cache = math.prod(blank.cache.k.shape)
    return kernels.Case(
        name=f"rounds: {name}",
        function=decode,
        arguments={
            "params": params,
            "state": blank,
            "sampling": jax.eval_shape(lambda: specjax.sampling(rows)),
        },
        kept=frozenset((cache, cache // config.num_layers)),
        donated=("state",),
    )
