"""Recipes."""

import pathlib
import re

import pytest

from specjax.cli import recipe

CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda p: p.stem)
def test_shipped_recipes_are_valid(path):
    assert recipe.read(path).model == "smollm2-135m"


def test_drafter_as_text_and_as_table(tmp_path):
    path = tmp_path / "r.toml"
    path.write_text('drafter = "prompt_lookup:max_draft=3"\n')
    assert recipe.read(path).drafter.name == "prompt_lookup:max_draft=3"
    path.write_text('[drafter]\nname = "prompt_lookup"\noptions = {max_draft = 3}\n')
    assert recipe.read(path).drafter.options == {"max_draft": 3}


def test_options_given_go_before_the_file():
    changed = recipe.Recipe(model="a").changed(
        model=None, dtype="float16", drafter="none", sampling={"seed": 4, "top_k": None}
    )
    assert (changed.model, changed.dtype, changed.sampling.seed) == ("a", "float16", 4)
    assert changed.sampling.top_k == 0


def test_what_is_not_a_number_or_text_is_read_too(tmp_path):
    path = tmp_path / "r.toml"
    path.write_text("""[sampling]
        temperature = 1
        stop_token_ids = [3]
        logit_bias = { "4" = 1.5 }
        stop = ["a"]
        min_new_tokens = 2
    """)
    found = recipe.read(path).sampling
    assert (found.temperature, found.stop_token_ids, found.stop) == (1, (3,), ("a",))
    assert (found.logit_bias, found.min_new_tokens) == ({4: 1.5}, 2)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("model = ", "TOML"),
        ("modle = 'a'", "modle is not a known key; did you mean 'model'?"),
        ("[sampling]\ntemperature = 'hot'", "sampling.temperature"),
        ("[sampling]\ntop_k = true", "sampling.top_k"),
        ("[sampling]\nignore_eos = 'no'", "sampling.ignore_eos"),
        ("[drafter]\noptions = {}", "drafter.name"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, word):
    path = tmp_path / "r.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(word)):
        recipe.read(path)
