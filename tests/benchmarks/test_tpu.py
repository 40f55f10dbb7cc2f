"""The gate for TPU: what it refuses. Compiling needs libtpu: `make tpu-check`."""

import dataclasses

import jax
import pytest

from benchmarks.tpu import check, chips, hlo, kernels, rounds

TEXT = """
  %copy.1 = bf16[1,30,3,2048,64]{3,4,2,1,0:T(8,128)(2,1)} copy(%get-tuple-element.1)
  %copy-start.2 = (bf16[16,8]{1,0:S(1)}, bf16[16,8]{1,0}, u32[]{:S(2)}) copy-start(%w)
  %transpose.3 = f32[8,16]{1,0} transpose(%x), dimensions={1,0}
  %fusion.4 = bf16[16,8]{1,0:T(8,128)} fusion(%x), kind=kLoop, calls=%copy_fused
  %copy.5 = s32[]{:T(128)} copy(%layer)
"""
FACTS = hlo.Facts(arguments=1, temporaries=1, resident=2, read=100.0, flops=0.0)


def case(**changes):
    made = kernels.Case(name="none", function=len, arguments={}, kernel=False)
    return dataclasses.replace(made, **changes)


def problems(text="", facts=FACTS, **changes):
    return list(check.find_problems(case(**changes), facts, text, "v5e"))


def test_moves_of_the_sizes_asked_for_are_found():
    assert hlo.moves(TEXT, {30 * 3 * 2048 * 64}) == ["copy.1: copy of [1,30,3,2048,64]"]
    assert hlo.moves(TEXT, {128}) == [
        "copy-start.2: copy-start of [16,8]",
        "transpose.3: transpose of [8,16]",
    ]
    assert not hlo.moves(TEXT, {64})


def test_a_program_without_faults_passes():
    assert not problems(text=TEXT)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"text": TEXT, "kept": frozenset([128])}, "copy-start of"),
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
        rounds.SMOLLM2, num_layers=2, vocab_size=64, embed_size=32, mlp_size=16
    )
    one = rounds.case("tiny", config, rows=1, capacity=512)
    made = jax.eval_shape(one.function, **one.arguments)
    assert made.cache.k.shape == one.arguments["state"].cache.k.shape
    assert one.kept == {2 * 3 * 512 * 64, 3 * 512 * 64}
