from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from specjax import make_mesh
from specjax.core import axes
from specjax.core import history as history_lib
from specjax.models import cache as cache_lib
from tests import tiny_model


class _Own(NamedTuple):
    row: jax.Array
    shared: Any


def test_names_without_a_rule_and_axes_that_a_mesh_lacks_are_held_whole():
    both = make_mesh(data=2, model=2)
    names = ("batch", None, "embed", "vocab")
    assert axes.spec(both, names) == PartitionSpec("data", None, None, "model")
    only = jax.make_mesh((2,), ("model",))
    assert axes.spec(only, names) == PartitionSpec(None, None, None, "model")


def test_states_are_split_by_rows_and_caches_by_heads_too():
    mesh = make_mesh(data=2, model=2)
    cache = cache_lib.init(tiny_model.config(), 2, 256, jnp.dtype("float32"))
    shared = {"counts": jnp.zeros(4)}
    state = {"cache": cache, "history": history_lib.empty(2, 8)}
    state["own"] = _Own(jnp.zeros((2, 3)), shared)
    specs = axes.state_specs(mesh, state)
    heads = PartitionSpec("data", None, "model", None, None)
    assert specs["cache"] == cache_lib.KVCache(heads, heads)
    assert specs["history"].tokens == PartitionSpec("data")
    assert specs["own"].row == PartitionSpec("data")
    assert specs["own"].shared["counts"] == PartitionSpec()


def test_each_device_runs_the_function_on_its_own_part():
    mesh = make_mesh(data=2, model=2)
    seen = []

    def function(x, y, sign, nothing):
        assert nothing is None
        seen.append((x.shape, y["z"].shape))
        return sign * x + jnp.sum(y["z"])

    split = axes.per_device(
        function, (("batch", "kv_heads"), ("batch",), (), ()), ("batch", "kv_heads")
    )
    x = jnp.arange(8.0).reshape(2, 4)
    y = {"z": jnp.asarray([[1.0], [10.0]])}
    there = jax.device_put((x, y), jax.NamedSharding(mesh, PartitionSpec()))
    with axes.on(mesh):
        got = jax.jit(lambda x, y: split(x, y, -1, None))(*there)
    assert seen == [((1, 2), (1, 1))]
    np.testing.assert_array_equal(got, -x + jnp.asarray([[1.0], [10.0]]))
    np.testing.assert_array_equal(split(x, y, -1, None), -x + 11.0)  # without a mesh


def test_nothing_happens_without_a_mesh():
    state = history_lib.empty(2, 8)
    with axes.on(None):
        assert axes.constrain_state(None, state) is state
        assert axes.parts(axes.DATA) == 1
    with axes.on(make_mesh(data=2)):
        assert axes.parts(axes.DATA) == 2
