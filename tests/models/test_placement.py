import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from specjax import Engine, load, make_mesh
from specjax.models import decoder, placement
from tests import saved_model, tiny_model


def test_meshes_are_spelled_in_any_order_and_may_leave_an_axis_out():
    mesh = placement.parse_mesh("model=2,data=3")
    assert dict(mesh.shape) == {"data": 3, "model": 2}
    assert placement.describe(mesh) == "data=3,model=2"
    assert dict(placement.parse_mesh("model=2").shape) == {"data": 1, "model": 2}
    assert mesh.axis_types == (jax.sharding.AxisType.Auto,) * 2


@pytest.mark.parametrize(
    "text", ["", "2", "data=", "data=x", "rows=2", "data=2,data=2", "data=-1", "=2"]
)
def test_a_mesh_spelled_otherwise_is_refused(text):
    with pytest.raises(ValueError, match="mesh: expected sizes of data and model"):
        placement.parse_mesh(text)


def test_a_mesh_of_more_devices_than_there_are_says_how_to_get_them():
    with pytest.raises(ValueError, match=r"take 12 devices, .* has 8; .*count=12"):
        make_mesh(data=4, model=3)
    with pytest.raises(ValueError, match="mesh: data must be at least 1, got 0"):
        make_mesh(data=0)


@pytest.mark.parametrize(
    ("split", "changes", "message"),
    [
        (4, {}, r"model=4 does not divide the model's kv heads of 2; .* model=2"),
        (3, {"num_kv_heads": 3, "num_heads": 3}, r"vocabulary of 260; .* model=1"),
        (2, {"mlp_size": 35}, r"MLP of 35; .* model=1"),
        (8, {}, r"kv heads of 2 and MLP of 36 and vocabulary of 260; .* is model=2"),
    ],
)
def test_a_mesh_that_does_not_divide_the_model_names_the_nearest(
    split, changes, message
):
    with pytest.raises(ValueError, match=message):
        placement.check(make_mesh(model=split), tiny_model.config(**changes))


def test_a_batch_that_the_mesh_does_not_divide_names_the_nearest():
    mesh = make_mesh(data=4)
    placement.check_rows(mesh, 8)
    with pytest.raises(ValueError, match=r"batch of 6 rows; .* has 8, or take data=3"):
        placement.check_rows(mesh, 6)
    with pytest.raises(ValueError, match=r"batch of 1 rows; .* has 4, or take data=1"):
        placement.check_rows(mesh, 1)


def test_axes_become_automatic_and_others_are_refused():
    explicit = jax.make_mesh((2,), ("model",), (jax.sharding.AxisType.Explicit,))
    made = placement.automatic(explicit)
    assert made.axis_types == (jax.sharding.AxisType.Auto,)
    with pytest.raises(ValueError, match="axes must be among data, model, got rows"):
        placement.automatic(jax.make_mesh((2,), ("rows",)))


@pytest.mark.parametrize("mesh", [None, {"data": 2, "model": 2}])
@pytest.mark.parametrize("scanned", [False, True])
def test_params_lie_row_by_row_where_they_are_for_tpu(
    mesh, scanned, tmp_path, monkeypatch
):
    saved_model.write(tmp_path)
    mesh = None if mesh is None else make_mesh(**mesh)
    options = {"max_new_tokens": 8, "ignore_eos": True}
    wanted = Engine(load(tmp_path, weights="dense", scanned=scanned)).generate(
        "the ban", **options
    )
    monkeypatch.setattr(placement, "_platform", lambda device: "tpu")
    lm = load(tmp_path, weights="dense", scanned=scanned, mesh=mesh)
    for leaf in jax.tree.leaves(lm.params):
        assert leaf.committed
        assert leaf.format.layout.major_to_minor == tuple(range(leaf.ndim))
    assert Engine(lm).generate("the ban", **options).tokens == wanted.tokens


@pytest.mark.parametrize("chosen", [1, "cpu"])
def test_params_for_tpu_go_to_the_default_device(chosen, monkeypatch):
    monkeypatch.setattr(placement, "_platform", lambda device: "tpu")
    device = chosen if isinstance(chosen, str) else jax.devices()[chosen]
    with jax.default_device(device):
        put = placement.put(None, np.ones((2, 3), np.float32), (None, None))
    wanted = jax.devices()[0 if isinstance(chosen, str) else chosen]
    assert put.devices() == {wanted}


@pytest.mark.parametrize("stacked", [False, True])
def test_params_of_models_are_split_wherever_they_stand(stacked):
    params = tiny_model.language_model(qkv_bias=True).params
    params = decoder.stack_layers(params) if stacked else params
    mesh = make_mesh(data=2, model=2)
    mine = {"target": params, "drafter": {"model": params, "table": np.arange(6)}}
    placed = placement.place(mesh, mine)
    for of in (placed["target"], placed["drafter"]["model"]):
        assert of["embed"].sharding.spec == PartitionSpec("model", None)
        layer = of["layers"] if stacked else of["layers"][1]
        front = (None,) if stacked else ()
        wanted = {
            "qkv": (None, "model"),
            "qkv_bias": ("model", None, None),
            "out": ("model", None),
            "down": ("model", None),
        }
        for name, spec in wanted.items():
            assert layer[name].sharding.spec == PartitionSpec(*front, *spec)
        for one in layer["gate_up"]:
            assert one.sharding.spec == PartitionSpec(*front, None, "model")
        assert layer["attn_norm"].sharding.is_fully_replicated
    assert placed["drafter"]["table"].sharding.is_fully_replicated
    again = placement.place(mesh, placed)
    assert again["target"]["embed"] is placed["target"]["embed"]
