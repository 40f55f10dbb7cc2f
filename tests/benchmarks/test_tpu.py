"""The gate for TPU: what it refuses. Compiling needs libtpu: `make tpu-check`."""

import dataclasses

import jax
import pytest

import specjax
from benchmarks.tpu import check, chips, hlo, kernels, models, report, rounds
from tests.small_checkpoint import Small

TEXT = """
  %copy.1 = bf16[1,30,3,2048,64]{3,4,2,1,0:T(8,128)(2,1)} copy(%get-tuple-element.1)
  %copy-start.2 = (bf16[16,8]{1,0:S(1)}, bf16[16,8]{1,0}, u32[]{:S(2)}) copy-start(%w)
  %transpose.3 = f32[8,16]{1,0} transpose(%x), dimensions={1,0}
  %fusion.4 = bf16[16,8]{1,0:T(8,128)} fusion(%x), kind=kLoop, calls=%copy_fused
  %copy.5 = s32[]{:T(128)} copy(%layer)
  %all-gather-start.6 = (bf16[64,8]{1,0}, bf16[64,32]{1,0}) all-gather-start(%w)
"""
FACTS = hlo.Facts(arguments=1, temporaries=1, resident=2, read=100.0, flops=0.0)


def case(**changes):
    made = kernels.Case(name="none", function=len, arguments={}, kernel=False)
    return dataclasses.replace(made, **changes)


def problems(text="", facts=FACTS, **changes):
    return list(check.find_problems(case(**changes), facts, text, "v5e"))


def test_moves_of_the_sizes_asked_for_are_found():
    def moves(*sizes):
        return hlo.made_by(TEXT, hlo.MOVES, sizes)

    assert moves(30 * 3 * 2048 * 64) == ["copy.1: copy of [1,30,3,2048,64]"]
    assert moves(128) == [
        "copy-start.2: copy-start of [16,8]",
        "transpose.3: transpose of [8,16]",
    ]
    assert not moves(64)
    assert hlo.made_by(TEXT, hlo.GATHERS, [64 * 32]) == [
        "all-gather-start.6: all-gather-start of [64,32]"
    ]


def test_a_program_without_faults_passes():
    assert not problems(text=TEXT)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"text": TEXT, "kept": frozenset([128])}, "copy-start of"),
        ({"text": TEXT, "split": frozenset([2048])}, "all-gather-start of"),
        ({"text": TEXT, "kernel": True}, "holds no Pallas kernel"),
        ({"read": 99.0}, "reads 100 bytes, more than 99"),
        ({"facts": dataclasses.replace(FACTS, resident=2**35)}, "the chip has"),
    ],
)
def test_faults_are_named(given, said):
    assert said in problems(**given)[0]


def test_cases_have_names_of_their_own():
    names = [one.name for one in kernels.cases()]
    assert len(set(names)) == len(names) > 40


def test_without_libtpu_there_is_a_message(monkeypatch):
    monkeypatch.setattr(chips.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="make tpu-check"):
        chips.prepare()


def test_a_round_can_be_traced():
    config = dataclasses.replace(
        models.SMOLLM2, num_layers=2, vocab_size=64, embed_size=32, mlp_size=16
    )
    mesh = specjax.make_mesh()
    one = rounds.case("tiny", config, rows=1, capacity=512, mesh=mesh)
    made = jax.eval_shape(one.function, **one.arguments)
    assert made.cache.k.shape == one.arguments["state"].cache.k.shape
    assert one.kept == {2 * 3 * 512 * 64, 3 * 512 * 64}
    assert not one.split


def test_a_round_on_several_chips_names_the_weights_that_they_share():
    config = dataclasses.replace(
        models.LLAMA3_8B, num_layers=2, vocab_size=64, embed_size=32, mlp_size=16
    )
    mesh = specjax.make_mesh(model=4)
    one = rounds.case("tiny", config, rows=2, capacity=512, mesh=mesh)
    qkv, out, gate_up = 32 * 8 * 6 * 128, 32 * 128 * 32, 2 * 32 * 16
    down, head = 16 * 32, 32 * 64
    a_layer = {qkv, out, gate_up, down}
    assert one.split == a_layer | {2 * size for size in a_layer} | {head}
    assert one.kept == {2 * 2 * 2 * 512 * 128, 2 * 2 * 512 * 128}


def test_a_weight_that_every_chip_holds_whole_is_refused(monkeypatch):
    axes = {**rounds.decoder.AXES, "down": ()}
    monkeypatch.setattr(rounds.decoder, "AXES", axes)
    with pytest.raises(ValueError, match=r"'down'.* is not split over the mesh"):
        rounds.case("x", models.SMOLLM2, 1, 512, specjax.make_mesh(model=3))


def test_layers_are_counted_as_often_as_they_run(monkeypatch):
    """Costs that are linear in layers, and cheaper with a window, come out exactly."""

    def compile_(config, form, mesh, sizes, stacked=True):
        assert not stacked
        layers = [100.0 if window == 0 else 40.0 for window in config.windows]
        read = 7.0 + sum(layers)
        return dataclasses.replace(FACTS, read=read, flops=2 * read)

    monkeypatch.setattr(report, "_compile", compile_)
    config = dataclasses.replace(
        models.GEMMA3_27B, num_layers=5, windows=(9, 9, 0, 9, 0)
    )
    read, flops = report._counted(config, "bfloat16", None, (1, 1, 256))
    assert read == 7 + 3 * 40 + 2 * 100
    assert flops == 2 * read


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("form", ["bfloat16", "int8"])
def test_weights_are_shaped_as_loading_makes_them(tmp_path, form, tied):
    small = Small(vocab_size=264, tie_word_embeddings=tied)
    path = small.directory(tmp_path / "m")
    weights = "int8" if form == "int8" else "dense"
    for mesh in (specjax.make_mesh(), specjax.make_mesh(model=2)):
        for scanned in (False, True):
            lm = specjax.load(
                path, dtype="bfloat16", weights=weights, scanned=scanned, mesh=mesh
            )
            told = rounds.weights(small.config, mesh, stacked=scanned, form=form)
            made = jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), lm.params)
            assert jax.tree.structure(told) == jax.tree.structure(lm.params)
            assert made == jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), told)


def test_the_report_takes_the_smallest_slice_that_holds_a_model(monkeypatch):
    def compile_(config, form, mesh, sizes, stacked=True):
        held = {"bfloat16": 40, "int8": 12}[form] * 2**30 // mesh.size
        return dataclasses.replace(FACTS, arguments=held, temporaries=2**30)

    monkeypatch.setattr(report, "_compile", compile_)
    monkeypatch.setattr(
        report.chips, "mesh", lambda name, n: specjax.make_mesh(model=n)
    )
    for form, smallest in {"bfloat16": 4, "int8": 1}.items():
        assert report._smallest(models.LLAMA3_8B, form, "v5e", 1, 256) == smallest
        assert report._smallest(models.LLAMA3_8B, form, "v5p", 1, 256) == 1
    (one, *_) = report.steps("v5p", 1, 256)
    assert (one.model, one.number, one.width) == ("llama-3-8b", 1, 1)
    wanted = 1e3 * one.read / chips.CHIPS["v5p"].bandwidth
    assert one.milliseconds == pytest.approx(wanted)
    assert one.read == 100
    assert report.table([one]).row_count == 1
