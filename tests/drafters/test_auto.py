"""The drafter without a choice follows from the costs alone."""

import pytest

from specjax import drafters
from specjax.drafters.compose import auto as auto_lib
from specjax.models import costs
from tests import tiny_model
from tests.drafters import replay

STEEP = costs.Costs(
    (1, 4, 8, 16), (33.0, 50.0, 62.0, 83.0), (5.0, 9.0, 10.0, 14.0), 5.0
)
FLAT = costs.Costs((1, 4, 16), (10.0, 10.5, 11.0), (0.1, 0.2, 0.4), 0.1)
PROHIBITIVE = costs.Costs((1, 4), (1.0, 9.0), (0.1, 0.1), 0.1)
PROMPTS = [[1, 2, 3, 1, 2], [4, 4, 4], [6, 5, 4, 3, 2, 1, 0] * 3]


def names(made):
    return [source.name for source in made.drafter.sources]


def test_where_width_is_dear_only_copies_are_drafted():
    made = auto_lib.auto(STEEP, vocab_size=7)
    assert names(made) == ["suffix"]
    assert made.drafter.needs.top_k == 0
    assert made.widths == (1, 4, 8, 16)
    assert "left out" in made.note


def test_where_width_is_cheap_recycling_joins():
    made = auto_lib.auto(FLAT, vocab_size=7)
    assert names(made) == ["suffix", "token_recycling"]
    assert made.drafter.needs.top_k > 0
    assert made.drafter.bounds.nodes == 15
    assert "taken in" in made.note


def test_nothing_is_drafted_where_nothing_pays():
    made = auto_lib.auto(PROHIBITIVE, vocab_size=7)
    runs = replay.record(made, PROMPTS)
    assert not any(seen.drafts for run in runs for seen in run)


def test_the_same_costs_make_the_same_choices():
    first, second = (
        replay.record(auto_lib.auto(FLAT, vocab_size=7), PROMPTS) for _ in range(2)
    )
    assert [[seen.drafts for seen in run] for run in first] == [
        [seen.drafts for seen in run] for run in second
    ]
    assert any(seen.path for run in first for seen in run)


def test_the_gain_of_recycling_alone():
    # Width 4 scores the three likeliest nodes: 0.39, 0.39 * 0.39 and 0.39 / 2^1.75.
    kept = 0.39 + 0.39**2 + 0.39 / 2**1.75
    expected = (1 + kept) * 33 / (40 + 2 + kept)  # a draw for each that is kept
    table = costs.Costs((1, 4), (33.0, 40.0), (1.0, 2.0), 1.0)
    made = auto_lib.auto(table, vocab_size=7)
    assert f"{expected:.2f} times as fast" in made.note


def test_costs_are_measured_once_and_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path))
    lm = tiny_model.language_model()
    first = auto_lib.measured(lm)
    monkeypatch.setattr(costs, "measure", None)  # a second time would fail
    assert auto_lib.measured(lm) == first


def test_a_damaged_table_is_measured_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path))
    monkeypatch.setattr(costs, "measure", lambda *_, **__: STEEP)
    lm = tiny_model.language_model()
    auto_lib.measured(lm)
    (path,) = (tmp_path / "costs").iterdir()
    path.write_text("{")
    assert auto_lib.measured(lm) == STEEP
    assert costs.load(path) == STEEP


def test_costs_from_a_file(tmp_path):
    path = tmp_path / "costs.json"
    costs.save(path, FLAT)
    made = drafters.make(f"auto:costs={path}", tiny_model.language_model())
    assert made.widths == FLAT.steps().widths


def test_an_unknown_option():
    with pytest.raises(ValueError, match="unknown option 'widths'"):
        drafters.make("auto:widths=3", tiny_model.language_model())
