"""Whole checkpoints: both formats, every family, and tensors that are damaged."""

import dataclasses

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from specjax import checkpoints
from specjax.models import decoder
from tests.checkpoints.compare import BOTH, GEMMA, dense, same


@pytest.mark.parametrize("name", BOTH)
def test_params_have_the_form_of_the_decoder(name, small, tmp_path):
    lm = dense(small(**BOTH[name][1]).directory(tmp_path / "m"))
    wanted = jax.eval_shape(
        lambda: decoder.init_params(lm.model.config, jax.random.key(0))
    )

    def form(tree):
        return jax.tree.map(lambda x: (x.shape, x.dtype), tree)

    assert form(lm.params) == form(wanted)


@pytest.mark.parametrize("name", BOTH)
def test_gguf_and_directory_are_the_same_model(name, small, tmp_path):
    arch, changes = BOTH[name]
    made = small(**changes)
    first = dense(made.directory(tmp_path / "m"))
    second = dense(made.gguf(tmp_path / "m.gguf", arch=arch))
    eps = first.model.config.norm_eps
    config = dataclasses.replace(second.model.config, norm_eps=eps)
    assert config == first.model.config
    same(first.params, second.params, rtol=1e-6)
    assert first.fingerprint == second.fingerprint
    assert first.stop_ids == second.stop_ids == (0,)
    assert first.chat_template == second.chat_template


def test_fused_projections_hold_the_pieces(small, tmp_path):
    """Of each kv head g: query heads g * R + r, key g and value g, transposed."""
    made = small()
    params = dense(made.directory(tmp_path / "m")).params
    tensors = made.tensors()
    layer, prefix = params["layers"][1], "model.layers.1."

    def piece(name):
        return tensors[f"{prefix}{name}.weight"]

    q = piece("self_attn.q_proj").reshape(4, 16, 64)
    k = piece("self_attn.k_proj").reshape(2, 16, 64)
    v = piece("self_attn.v_proj").reshape(2, 16, 64)
    qkv = np.asarray(layer["qkv"]).reshape(64, 2, 4, 16)
    for g in range(2):
        for r in range(2):
            np.testing.assert_array_equal(qkv[:, g, r], q[2 * g + r].T)
        np.testing.assert_array_equal(qkv[:, g, 2], k[g].T)
        np.testing.assert_array_equal(qkv[:, g, 3], v[g].T)
    gate, up = layer["gate_up"]
    np.testing.assert_array_equal(gate, piece("mlp.gate_proj").T)
    np.testing.assert_array_equal(up, piece("mlp.up_proj").T)
    np.testing.assert_array_equal(layer["down"], piece("mlp.down_proj").T)
    np.testing.assert_array_equal(layer["out"], piece("self_attn.o_proj").T)
    np.testing.assert_array_equal(params["head"], tensors["lm_head.weight"].T)


def test_norms_of_gemma_gain_their_one(small, tmp_path):
    made = small(model_type="gemma2", **GEMMA)
    params = checkpoints.load(made.directory(tmp_path / "m")).params
    wanted = made.tensors()["model.norm.weight"] + 1
    np.testing.assert_array_equal(params["final_norm"], wanted)


def test_shards_equal_one_file(small, tmp_path):
    made = small()
    one = checkpoints.load(made.directory(tmp_path / "one"))
    many = checkpoints.load(made.directory(tmp_path / "many", shards=3))
    same(one.params, many.params)


@pytest.mark.parametrize("kind", [ml_dtypes.bfloat16, np.float16])
def test_narrow_safetensors(small, tmp_path, kind):
    made = small()
    tensors = {name: x.astype(kind) for name, x in made.tensors().items()}
    narrow = dense(made.directory(tmp_path / "n", tensors=tensors))
    assert narrow.model.dtype == "float32"
    same(
        narrow.params,
        dense(made.directory(tmp_path / "w")).params,
        atol=2e-3,
    )


# Largest error for values up to about 4: half a step of each format.
KINDS = {
    "F32": 0.0,
    "F16": 2e-3,
    "BF16": 0.0,
    "Q8_0": 0.03,
    "Q4_0": 0.5,
    "Q4_1": 0.4,
    "Q5_0": 0.25,
    "Q5_1": 0.2,
}
# Rows of whole blocks of 256.


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_storage_in_gguf(small, tmp_path, kind):
    made = small()
    exact = dense(made.directory(tmp_path / "m")).params
    lm = dense(made.gguf(tmp_path / "m.gguf", kind=kind))
    same(lm.params, exact, atol=KINDS[kind], rtol=0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", jnp.float32])
def test_dtype(small, tmp_path, dtype):
    lm = dense(small().directory(tmp_path / "m"), dtype=dtype)
    assert {x.dtype for x in jax.tree.leaves(lm.params)} == {jnp.dtype(dtype)}
    assert lm.model.dtype == jnp.dtype(dtype).name


def test_scanned_is_the_unrolled_stacked(small, tmp_path):
    path = small().directory(tmp_path / "m")
    lm = checkpoints.load(path, scanned=True)
    assert isinstance(lm.params["layers"], dict)
    same(lm.params, decoder.stack_layers(dense(path).params))


def test_an_unknown_choice_of_weights(small, tmp_path):
    with pytest.raises(ValueError, match="weights: expected one of stored, decoded"):
        checkpoints.load(small().directory(tmp_path / "m"), weights="int3")


def test_gguf_chat_template_and_tokenizer_work_together(small, tmp_path):
    lm = checkpoints.load(small().gguf(tmp_path / "m.gguf"))
    text = lm.chat_template.render([{"role": "user", "content": "the 123"}])
    assert text == "user: the 123\nassistant:"
    assert lm.tokenizer.decode(lm.tokenizer.encode(text)) == text


@pytest.mark.parametrize("extra", ["rotary_emb.inv_freq", "lm_head.weight"])
def test_known_extras_are_passed_over(small, tmp_path, extra):
    made = small(tie_word_embeddings=True)
    name = extra if extra.startswith("lm") else f"model.layers.0.self_attn.{extra}"
    tensors = {**made.tensors(), name: np.ones((3,), np.float32)}
    checkpoints.load(made.directory(tmp_path / "m", tensors=tensors))


def damaged(tensors, how):
    """Tensors with one kind of damage."""
    name = "model.layers.1.mlp.up_proj.weight"
    if how == "missing":
        del tensors[name]
    elif how == "extra":
        tensors["model.layers.2.mlp.up_proj.weight"] = tensors[name]
    elif how == "misshapen":
        tensors[name] = tensors[name].T.copy()
    else:
        tensors[name][3, 4] = {"nan": np.nan, "infinite": -np.inf}[how]
    return tensors


DAMAGE = {
    "missing": "tensor model.layers.1.mlp.up_proj.weight is missing",
    "extra": "tensor model.layers.2.mlp.up_proj.weight is not part",
    "misshapen": "tensor model.layers.1.mlp.up_proj.weight has shape",
    "nan": "tensor model.layers.1.mlp.up_proj.weight holds NaN or infinite",
    "infinite": "tensor model.layers.1.mlp.up_proj.weight holds NaN or infinite",
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_tensors_of_a_directory_are_named(small, tmp_path, how):
    made = small()
    path = made.directory(tmp_path / "m", tensors=damaged(made.tensors(), how))
    with pytest.raises(ValueError, match=DAMAGE[how]):
        checkpoints.load(path)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "tensor blk.1.ffn_up.weight is missing"),
        (np.zeros((2, 32), np.float32), "tensor blk.1.ffn_up.weight has shape"),
        (np.full((96, 64), np.nan, np.float32), "tensor blk.1.ffn_up.weight holds"),
    ],
)
def test_damaged_tensors_of_gguf_are_named(small, tmp_path, value, message):
    path = small().gguf(tmp_path / "m.gguf", tensors={"blk.1.ffn_up.weight": value})
    with pytest.raises(ValueError, match=message):
        checkpoints.load(path)


def test_an_extra_tensor_of_gguf_is_named(small, tmp_path):
    extra = {"blk.0.ffn_gate_exps.weight": np.zeros((2, 32), np.float32)}
    with pytest.raises(ValueError, match=r"ffn_gate_exps.weight is not part of"):
        checkpoints.load(small().gguf(tmp_path / "m.gguf", tensors=extra))


def test_values_too_wide_for_the_dtype_are_named(small, tmp_path):
    made = small()
    tensors = made.tensors()
    tensors["model.norm.weight"][0] = 1e5  # float16 ends at 65504
    path = made.directory(tmp_path / "m", tensors=tensors)
    checkpoints.load(path)
    with pytest.raises(ValueError, match=r"model.norm.weight .* as float16"):
        checkpoints.load(path, dtype="float16")


def test_quantised_safetensors_are_refused(small, tmp_path):
    made = small()
    tensors = made.tensors()
    tensors["model.norm.weight"] = np.ones((64,), np.int8)
    path = made.directory(tmp_path / "m", tensors=tensors)
    with pytest.raises(ValueError, match=r"model.norm.weight is stored as I8"):
        checkpoints.load(path)


def test_an_embedding_smaller_than_the_vocabulary(small, tmp_path):
    path = small(vocab_size=100).directory(tmp_path / "m")
    with pytest.raises(ValueError, match="do not belong together"):
        checkpoints.load(path)


def test_a_padded_embedding_is_fine(small, tmp_path):
    lm = checkpoints.load(small(vocab_size=300).directory(tmp_path / "m"))
    assert lm.tokenizer.vocab_size < lm.model.config.vocab_size == 300


def test_stop_ids_come_from_everywhere_once(small, tmp_path):
    path = small().directory(tmp_path / "m", config={"eos_token_id": [0, 7]})
    (path / "generation_config.json").write_text('{"eos_token_id": [1, 7]}')
    assert checkpoints.load(path).stop_ids == (1, 7, 0)


def test_a_stop_id_outside_the_vocabulary(small, tmp_path):
    path = small().directory(tmp_path / "m", config={"eos_token_id": 12345})
    with pytest.raises(ValueError, match="eos_token_id: expected ids in 0"):
        checkpoints.load(path)


@pytest.mark.parametrize("dtype", ["int8", "float64", "no such thing", 3])
def test_bad_dtype(small, tmp_path, dtype):
    with pytest.raises(ValueError, match="dtype: expected one of float32"):
        checkpoints.load(small().directory(tmp_path / "m"), dtype=dtype)


def test_errors_name_the_checkpoint(small, tmp_path):
    path = small().directory(tmp_path / "m", config={"model_type": "phi"})
    with pytest.raises(ValueError, match=str(path)):
        checkpoints.load(path)


def test_inspect_reads_headers_only(small, tmp_path):
    made = small()
    tensors = damaged(made.tensors(), "nan")
    path = made.directory(tmp_path / "m", tensors=tensors)
    seen = checkpoints.inspect(path)
    assert seen.problems == []
    assert seen.config == made.config
    assert seen.shapes["model.norm.weight"] == (64,)
    assert seen.stop_ids == (0,)
    assert seen.has_chat_template
    assert seen.vocab_size == made.config.vocab_size


def test_inspect_finds_every_problem(small, tmp_path):
    made = small()
    tensors = damaged(made.tensors(), "missing")
    tensors["surplus"] = np.ones((1,), np.int8)
    path = made.directory(tmp_path / "m", tensors=tensors)
    (path / "tokenizer.json").unlink()
    text = "\n".join(checkpoints.inspect(path).problems)
    for part in (
        "up_proj.weight is missing",
        "surplus is not part",
        "surplus is stored as I8",
        "found no such file",
    ):
        assert part in text


def test_inspect_of_another_family(small, tmp_path):
    path = small().directory(tmp_path / "m", config={"model_type": "phi"})
    seen = checkpoints.inspect(path)
    assert seen.config is None
    assert "model_type" in seen.problems[0]
    assert seen.fingerprint


def test_truncate_shares_every_array(small, tmp_path):
    lm = checkpoints.load(small().directory(tmp_path / "m"))
    cut = checkpoints.truncate(lm, 1)
    assert cut.model.config.num_layers == 1
    assert len(cut.params["layers"]) == 1
    whole = {id(x) for x in jax.tree.leaves(lm.params)}
    assert {id(x) for x in jax.tree.leaves(cut.params)} <= whole
    assert cut.params["head"] is lm.params["head"]
    assert cut.tokenizer is lm.tokenizer


def test_truncate_cuts_the_windows(small, tmp_path):
    made = small(model_type="gemma2", **GEMMA)
    lm = checkpoints.load(made.directory(tmp_path / "m"))
    assert checkpoints.truncate(lm, 1).model.config.windows == (8,)


@pytest.mark.parametrize("layers", [0, 3, -1, 1.5, True])
def test_truncate_to_no_such_layers(small, tmp_path, layers):
    lm = checkpoints.load(small().directory(tmp_path / "m"))
    with pytest.raises(ValueError, match="layers: expected"):
        checkpoints.truncate(lm, layers)


def test_truncate_of_stacked_layers(small, tmp_path):
    lm = checkpoints.load(small().directory(tmp_path / "m"), scanned=True)
    with pytest.raises(ValueError, match="scanned=False"):
        checkpoints.truncate(lm, 1)
