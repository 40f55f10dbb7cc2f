"""Our forward against golden logits of transformers, without torch."""

import importlib.util
import pathlib

import numpy as np
import pytest

from specjax import checkpoints

_SPEC = importlib.util.spec_from_file_location(
    "parity_ours", pathlib.Path(__file__).with_name("ours.py")
)
ours = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(ours)

CASES = ours.cases()


def test_every_family_has_a_case():
    families = {ours.load_case(name)[0].config.family for name in CASES}
    assert families == {
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "gemma2",
        "gemma3_text",
    }


@pytest.mark.parametrize("way", ours.WAYS)
@pytest.mark.parametrize("name", CASES)
def test_logits_of_a_small_checkpoint(name, way):
    model, params, golden = ours.load_case(name)
    assert ours.WAYS[way](model, params, golden) <= ours.TOLERANCE


@pytest.mark.parametrize("name", CASES)
def test_weights_kept_as_stored_give_the_same_logits(name):
    model, params, golden = ours.load_case(name, stored=True)
    assert ours.branched(model, params, golden) <= ours.TOLERANCE


@pytest.mark.parametrize("name", ["gemma3", "llama_biases"])
def test_scanned_layers_give_the_same_logits(name):
    model, params, golden = ours.load_case(name, scanned=True)
    assert ours.branched(model, params, golden) <= ours.TOLERANCE


@pytest.mark.parametrize("name", CASES)
def test_goldens_are_not_trivial(name):
    """Logits of order 1 to 10 that differ between positions."""
    _, _, golden = ours.load_case(name)
    assert 0.5 < np.std(golden["logits"]) < 10
    assert np.min(np.std(golden["logits"], axis=0)) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["stored", "decoded", "tiled", "dense"])
def test_logits_of_the_real_model(weights):
    """Against transformers in float32, which decodes the same blocks."""
    lm = checkpoints.load("smollm2-135m", weights=weights)
    with np.load(ours.GOLDENS / "smollm2_logits.npz") as golden:
        for index in range(2):
            assert ours.smollm2_logits(lm, golden, index) <= ours.TOLERANCE


@pytest.mark.parametrize(
    "entry", ours.load_json("smollm2_text.json")["texts"], ids=lambda e: e["text"][:12]
)
def test_ids_of_a_text(smollm2, entry):
    ids = smollm2.tokenizer.encode(entry["text"])
    assert ids == entry["ids"]
    decoded = smollm2.tokenizer.decode(ids, skip_special_tokens=False)
    assert decoded == entry["decoded"]


@pytest.mark.parametrize("index", [0, 1, 2])
def test_chat_template(smollm2, index):
    chat = ours.load_json("smollm2_text.json")["chats"][index]

    def render(prompt):
        return smollm2.chat_template.render(
            chat["messages"], add_generation_prompt=prompt
        )

    assert render(False) == chat["text"]
    assert render(True) == chat["prompt"]
