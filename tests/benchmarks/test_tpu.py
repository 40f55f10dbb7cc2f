"""The gate for TPU: what it refuses. Compiling needs libtpu: `make tpu-check`."""

import dataclasses
import pathlib
import types

import jax
import pytest

import specjax
from benchmarks.tpu import (
    check,
    chips,
    hlo,
    kernels,
    models,
    program,
    report,
    rounds,
    traffic,
)
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
    qkv, out, gate, embed = 32 * 3 * 5 * 64, 9 * 64 * 32, 32 * 16, 64 * 32
    assert one.weights == {
        embed,
        *(n * size for n in (1, 2) for size in (qkv, out, gate)),
    }


def test_a_round_on_several_chips_names_the_weights_that_they_share():
    config = dataclasses.replace(
        models.LLAMA3_8B, num_layers=2, vocab_size=64, embed_size=32, mlp_size=16
    )
    mesh = specjax.make_mesh(model=4)
    one = rounds.case("tiny", config, rows=2, capacity=512, mesh=mesh)
    qkv, out, gate = 32 * 8 * 6 * 128, 32 * 128 * 32, 32 * 16
    down, head = 16 * 32, 32 * 64
    a_layer = {qkv, out, gate, down}
    assert one.split == a_layer | {2 * size for size in a_layer} | {head}
    assert one.kept == {2 * 2 * 2 * 512 * 128, 2 * 2 * 512 * 128}
    assert one.weights == {size // 4 for size in one.split}


def test_a_weight_that_every_chip_holds_whole_is_refused(monkeypatch):
    axes = {**rounds.decoder.AXES, "down": ()}
    monkeypatch.setattr(rounds.decoder, "AXES", axes)
    with pytest.raises(ValueError, match=r"'down'.* is not split over the mesh"):
        rounds.case("x", models.SMOLLM2, 1, 512, specjax.make_mesh(model=3))


def test_flops_are_counted_for_every_layer(monkeypatch):
    def compile_(config, form, mesh, sizes, stacked=True):
        assert not stacked
        assert len(config.windows) == config.num_layers
        return config.num_layers

    def facts(layers):
        return dataclasses.replace(FACTS, flops=7.0 + 100.0 * layers)

    monkeypatch.setattr(report, "_compile", compile_)
    monkeypatch.setattr(report.hlo, "facts", facts)
    found = report._flops(models.GEMMA3_27B, "bfloat16", None, (1, 1, 256))
    assert found == 7 + 62 * 100


LOOP = pathlib.Path(__file__).with_name("loop.hlo").read_text()


def test_bytes_are_counted_where_they_cross_memory():
    q, blank = 8 * 16 * 2, 4 * 16 * 4
    fetched = q  # to the chip, from where it is turned for nothing but the writing
    turned = q
    zero = 4
    cut = 8 * 16 * 2  # one of four, and the sum stays on the chip
    put = 2 * 16 * 4  # the new row is read, and written in place
    once = fetched + turned + zero + blank
    found = traffic.moved(program.read(LOOP), turns=4)
    assert found == once + 4 * (cut + 500 + put)


def test_loops_in_loops_are_not_guessed():
    nested = LOOP.replace("custom-call(%cut.1, /*index=1*/%w)", "while(%t)")
    with pytest.raises(ValueError, match="how often kernel runs, a while, is open"):
        traffic.moved(program.read(nested), turns=4)


def test_a_text_without_an_entry_is_refused():
    with pytest.raises(ValueError, match="no entry"):
        program.read(LOOP.replace("ENTRY ", ""))


def test_weights_that_are_moved_about_are_named():
    made = program.read(LOOP)
    assert program.made_again(made, {8 * 16}) == ["turned: transpose"]
    assert program.made_again(made, {4 * 8 * 16}) == []
    spilt = LOOP.replace("f32[16]{0:T(128)S(1)} fusion", "bf16[8,16]{1,0} fusion")
    assert program.made_again(program.read(spilt), {8 * 16}) == [
        "turned: transpose",
        "cut.1: fusion",
    ]
    assert problems(text=LOOP, weights=frozenset([8 * 16])) == [
        "turned: transpose moves weights about"
    ]


@pytest.mark.parametrize(
    "attributes",
    [
        "branch_computations={%other, %inside}",
        "true_computation=%other, false_computation=%inside",
    ],
)
def test_weights_moved_about_in_a_branch_are_named(attributes):
    text = f"""
%inside (a: bf16[8,16]) -> bf16[16,8] {{
  %a = bf16[8,16]{{1,0}} parameter(0)
  ROOT %turned = bf16[16,8]{{1,0}} transpose(%a), dimensions={{1,0}}
}}

%other (b: bf16[8,16]) -> bf16[16,8] {{
  %b = bf16[8,16]{{1,0}} parameter(0)
  ROOT %same = bf16[16,8]{{1,0}} bitcast(%b)
}}

ENTRY %main (p: bf16[8,16], i: s32[]) -> bf16[16,8] {{
  %p = bf16[8,16]{{1,0}} parameter(0)
  %i = s32[] parameter(1)
  %chosen = bf16[16,8]{{1,0}} conditional(%i, %p, %p), {attributes}
  ROOT %done = bf16[16,8]{{1,0}} bitcast(%chosen)
}}
"""
    assert program.made_again(program.read(text), {128}) == ["turned: transpose"]


def test_weights_moved_about_on_the_chip_are_no_fault():
    text = LOOP.replace(
        "%turned = bf16[16,8]{1,0} transpose",
        "%turned = bf16[16,8]{1,0:S(1)} transpose",
    )
    assert program.made_again(program.read(text), {8 * 16}) == []


def test_what_a_fusion_writes_besides_an_update_counts():
    text = """
%both (a: f32[4,16], b: f32[1,16], i: s32[]) -> (f32[4,16], f32[8,16]) {
  %a = f32[4,16]{1,0} parameter(0)
  %b = f32[1,16]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %update = f32[4,16]{1,0} dynamic-update-slice(%a, %b, %i)
  %wide = f32[8,16]{1,0} broadcast(%b), dimensions={0,1}
  ROOT %out = (f32[4,16]{1,0}, f32[8,16]{1,0}) tuple(%update, %wide)
}

ENTRY %main (p: f32[4,16], q: f32[1,16], n: s32[]) -> f32[4,16] {
  %p = f32[4,16]{1,0} parameter(0)
  %q = f32[1,16]{1,0} parameter(1)
  %n = s32[] parameter(2)
  %made = (f32[4,16]{1,0}, f32[8,16]{1,0}) fusion(%p, %q, %n), kind=kLoop, calls=%both
  ROOT %first = f32[4,16]{1,0} get-tuple-element(%made), index=0
}
"""
    # Reads q for the update, q for the wide one as far as it is large, and n; writes a
    # row and the wide one.
    row, wide = 16 * 4, 8 * 16 * 4
    moved = traffic.moved(program.read(text), turns=1)
    assert row + wide <= moved <= 3 * row + wide + 4


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
        return types.SimpleNamespace(
            arguments=held, temporaries=2**30, flops=0.0, as_text=lambda: LOOP
        )

    monkeypatch.setattr(report, "_compile", compile_)
    monkeypatch.setattr(report.hlo, "facts", lambda compiled: compiled)
    monkeypatch.setattr(
        report.chips, "mesh", lambda name, n: specjax.make_mesh(model=n)
    )
    for form, smallest in {"bfloat16": 4, "int8": 1}.items():
        assert report._smallest(models.LLAMA3_8B, form, "v5e", 1, 256) == smallest
        assert report._smallest(models.LLAMA3_8B, form, "v5p", 1, 256) == 1
    (one, *_) = report.steps("v5p", 1, 256)
    assert (one.model, one.number, one.width) == ("llama-3-8b", 1, 1)
    wanted = 1e3 * one.moved / chips.CHIPS["v5p"].bandwidth
    assert one.milliseconds == pytest.approx(wanted)
    assert one.moved == traffic.moved(program.read(LOOP), models.LLAMA3_8B.num_layers)
    assert report.table([one]).row_count == 1
