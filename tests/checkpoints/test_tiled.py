"""Matrices held as accelerators read them, by the stored blocks or in 8 bits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from benchmarks.decoding import bare
from pallas_kernels import linear
from pallas_kernels.linear import tiled
from specjax import checkpoints
from specjax.core import axes
from specjax.models import decoder
from tests.small_checkpoint import Small

IDS = jnp.asarray([[5, 6, 7, 200, 9, 31, 2, 8], [1, 2, 3, 4, 5, 6, 7, 8]], jnp.int32)


@pytest.fixture
def file(tmp_path):
    """(kind, **changes of the model) -> a GGUF file."""
    return lambda kind, **changes: Small(**changes).gguf(
        tmp_path / f"{kind}.gguf", kind=kind
    )


@pytest.fixture
def folder(tmp_path):
    """(**changes of the model) -> a directory of one that a mesh divides."""
    return lambda **changes: Small(vocab_size=264, **changes).directory(tmp_path / "m")


def logits(lm):
    """f32[B, N, V] after each token of a few rows; hidden is in the params' dtype."""
    config = lm.model.config

    @jax.jit
    def run(params):
        rows, slots = IDS.shape
        cache = lm.model.target.init(rows, 256)
        start = jnp.zeros((rows,), jnp.int32)
        with axes.on(lm.mesh):
            hidden, _, _ = decoder.forward(
                config, params, bare.chain(IDS), cache, start
            )
            assert hidden.dtype == lm.model.dtype
            flat = decoder.head(config, params, hidden.reshape(rows * slots, -1))
        return flat.reshape(rows, slots, -1)

    return np.asarray(run(lm.params))


def as_arrays(params):
    """Params with every tiled matrix decoded, as the decoder holds arrays."""

    def of(name, value):
        if isinstance(value, list):
            return [of(name, one) for one in value]
        if not isinstance(value, linear.Tiled):
            return value
        return tiled.decode(value).T if name == "embed" else tiled.decode(value)

    top = {name: of(name, value) for name, value in params.items() if name != "layers"}
    layers = [{n: of(n, v) for n, v in layer.items()} for layer in params["layers"]]
    return {**top, "layers": layers}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("kind", "kinds"),
    [("Q8_0", "q8_0"), ("Q4_0", "q4_0"), ("Q4_1", "q4_1"), ("F16", "dense")],
)
def test_stored_blocks_say_the_same_tiled(file, kind, kinds, tied):
    load = functools.partial(
        checkpoints.load, file(kind, tie_word_embeddings=tied), dtype="float32"
    )
    lm = load(weights="tiled")
    assert lm.weights == kinds
    np.testing.assert_allclose(logits(lm), logits(load(weights="dense")), atol=2e-4)
    # Columns of 96 are no multiple of 64: those matrices of 4 bits are arrays.
    down = lm.params["layers"][0]["down"]
    assert isinstance(down, linear.Tiled) == (kind == "Q8_0")
    assert isinstance(lm.params["embed"], linear.Tiled) == (tied and kinds != "dense")


@pytest.mark.parametrize("tied", [False, True])
def test_eight_bits_are_those_nearest_the_weights(file, tied):
    path = file("F32", tie_word_embeddings=tied)
    lm = checkpoints.load(path, weights="int8")
    assert lm.weights == "int8"
    assert isinstance(lm.params["embed"], linear.Tiled) == tied
    exact = checkpoints.load(path, weights="dense").params
    rounded = as_arrays(lm.params)
    for one, other in zip(
        jax.tree.leaves(rounded), jax.tree.leaves(exact), strict=True
    ):
        most = np.abs(other).max()
        assert np.abs(one - other).max() <= most / 127 / 1.99
    decoded = specjax.LanguageModel(**{**vars(lm), "params": rounded})
    np.testing.assert_allclose(logits(lm), logits(decoded), atol=2e-4)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("scanned", [False, True])
def test_eight_bits_over_a_mesh_and_stacked(folder, tied, scanned):
    # 264 words: one device pads them to 384, of which a mesh would hold 192 and 72.
    path = folder(tie_word_embeddings=tied)
    alone = logits(checkpoints.load(path, weights="int8"))
    mesh = specjax.make_mesh(data=2, model=2)
    for where in (None, mesh):
        lm = checkpoints.load(path, weights="int8", scanned=scanned, mesh=where)
        np.testing.assert_allclose(logits(lm), alone, atol=2e-4)
    layers = lm.params["layers"]
    gate, _ = layers["gate_up"] if scanned else layers[0]["gate_up"]
    front = (None,) if scanned else ()
    assert tuple(gate.whole.sharding.spec) == (*front, None, "model")
    assert tuple(gate.scale.sharding.spec) == (*front, None, None, "model")
    words = lm.params["embed" if tied else "head"].whole
    assert words.shape[1] == 264
    down = layers["down"] if scanned else layers[0]["down"]
    assert tuple(down.whole.sharding.spec) == (*front, "model", None)
    assert tuple(down.scale.sharding.spec) == (*front, None, None, None)


def test_eight_bits_generate_over_a_mesh_as_alone(folder):
    path = folder(tie_word_embeddings=True)
    prompts = [[5, 6, 7, 5, 6], [1, 2, 3]]
    said = []
    for mesh in (None, specjax.make_mesh(data=2, model=2)):
        lm = checkpoints.load(path, weights="int8", mesh=mesh)
        options = {"max_new_tokens": 12, "ignore_eos": True, "temperature": 0.8}
        engine = specjax.Engine(lm, "prompt_lookup", max_context=256)
        said.append([r.tokens for r in engine.generate(prompts, **options)])
    assert said[0] == said[1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("form", ["tiled", "int8"])
def test_activations_keep_their_dtype(file, dtype, form):
    path = file("Q8_0", tie_word_embeddings=True)
    lm = checkpoints.load(path, dtype=dtype, weights=form)
    found, exact = logits(lm), logits(checkpoints.load(path, dtype="float32"))
    assert lm.params["final_norm"].dtype == dtype
    assert np.mean(np.argmax(found, -1) == np.argmax(exact, -1)) > 0.8


@pytest.mark.parametrize("where", [{"scanned": True}, {"mesh": True}])
def test_stored_blocks_are_neither_stacked_nor_split(file, where):
    if "mesh" in where:
        where = {"mesh": specjax.make_mesh(data=2)}
    with pytest.raises(ValueError, match="weights: tiled matrices can't be"):
        checkpoints.load(file("Q8_0"), weights="tiled", **where)
