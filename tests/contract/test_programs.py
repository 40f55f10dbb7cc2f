"""Two programs a bucket, whatever the values; caches neither copied nor turned."""

import re

import jax
import jax.numpy as jnp
import pytest

from specjax import RecompileError
from specjax.core import sampling as sampling_lib
from specjax.decoding import programs
from tests.contract.conftest import TEXTS, make_engine


def test_values_compile_nothing(name):
    engine = make_engine(name)
    engine.warmup(rows=1, prompt_tokens=30, max_new_tokens=20)
    assert engine.programs.count == 2
    engine.programs.strict = True
    for seed, text in enumerate(TEXTS[:3]):
        options = {"max_new_tokens": 10 + seed, "seed": seed, "temperature": 0.4 * seed}
        result = engine.generate(text, top_k=seed, **options)
        assert result.compile_seconds == 0
    list(engine.stream(TEXTS[0], max_new_tokens=5, stop=["zz"]))
    assert engine.programs.count == 2
    with pytest.raises(RecompileError, match="warmup"):
        engine.generate(TEXTS[:2], max_new_tokens=5)


def test_compiled_round_leaves_the_cache_alone(name, lm):
    """No copy and no transpose of a cache-sized buffer; small temporaries."""
    engine = make_engine(name)
    held, capacity = engine.programs, 4096
    state = jax.eval_shape(
        lambda: programs.blank(held.recipe, held.params, 1, capacity)
    )
    sampled = sampling_lib.pack([sampling_lib.SamplingOptions()], [0])
    lowered = held.lower(
        programs.decode, state=state, sampling=sampled, limit=jnp.int32(1)
    )
    compiled = lowered.compile()
    config = lm.model.config
    shape = rf"f32\[1,{config.num_kv_heads},{capacity},{config.head_size}\]"
    moved = re.findall(rf"= {shape}\S* (?:copy|transpose)\(.*", compiled.as_text())
    assert not moved
    cache = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state.cache))
    assert compiled.memory_analysis().temp_size_in_bytes < max(cache, 10_000_000) / 10
