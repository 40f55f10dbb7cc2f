"""Costs of widths: the table, its file, and a measurement."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest

from specjax.models import costs
from tests import tiny_model

TABLE = costs.Costs((1, 4, 8, 16), (10.0, 10.2, 19.0, 20.0), (1.0, 2.0, 3.0, 4.0), 0.5)


def test_a_width_that_costs_hardly_less_than_the_next_is_left_out():
    # 4 costs 2 % more than 1 does; 1 always stays. 16 costs 5 % more than 8.
    assert TABLE.steps().widths == (1, 4, 8, 16)
    assert TABLE.steps(1.1).widths == (1, 4, 16)
    near = dataclasses.replace(TABLE, forward=(10.0, 12.0, 12.2, 15.0))
    assert near.steps().widths == (1, 8, 16)  # whatever the widest costs
    flat = costs.Costs((1, 4, 8), (5.0, 5.0, 5.0), (1.0, 1.0, 1.0), 1.0)
    assert flat.steps().widths == (1, 8)
    assert TABLE.steps(1.1).forward == (10.0, 10.2, 20.0)
    assert TABLE.steps(1.1).top_ids == (1.0, 2.0, 4.0)
    assert TABLE.steps(1.1).draw == 0.5


def test_a_width_that_pays_for_no_chain_is_left_out():
    """Chains of chance 0.95 a draft keep 2.71, 5.73 and 10.19 drafts of 3, 7 and 15.

    Tokens a ms: 3.71 / 9.71 = 0.38, 6.73 / 15.73 = 0.43, 11.19 / 30.19 = 0.37.
    """
    steep = costs.Costs((1, 4, 8, 16), (5.0, 7.0, 10.0, 20.0), (1.0,) * 4, 1.0)
    assert steep.steps().widths == (1, 4, 8)
    # Where the first 8 tokens are drawn at once: 0.53, 0.67 and 11.19 / 24.46 = 0.46.
    at_once = dataclasses.replace(steep, forward=(5.0, 7.0, 10.0, 20.0), ahead=8)
    assert at_once.steps().widths == (1, 4, 8)
    cheap = dataclasses.replace(steep, forward=(5.0, 7.0, 10.0, 12.0), ahead=8)
    assert cheap.steps().widths == (1, 4, 8, 16)  # 11.19 / 16.46 = 0.68


def test_a_table_comes_back_from_its_file(tmp_path):
    path = tmp_path / "folder" / "costs.json"
    costs.save(path, TABLE)
    assert costs.load(path) == TABLE
    assert [entry.name for entry in path.parent.iterdir()] == ["costs.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        json.dumps({"widths": [1], "forward": [1.0], "draw": 1}),
        json.dumps({"widths": [1], "forward": [1.0], "top_ids": [0]}),
        json.dumps({"widths": [1], "forward": [1.0], "top_ids": [0], "draw": -1}),
        json.dumps({"widths": [1, 4], "forward": [1], "top_ids": [0, 0], "draw": 1}),
        json.dumps({"widths": [2], "forward": [1.0], "top_ids": [0], "draw": 1}),
        json.dumps({"widths": [1], "forward": [0.0], "top_ids": [0], "draw": 1}),
        json.dumps({"widths": [1], "forward": ["x"], "top_ids": [0], "draw": 1}),
    ],
)
def test_a_file_without_a_table_is_refused(tmp_path, text):
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="costs"):
        costs.load(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match="can't read"):
        costs.load(tmp_path / "none.json")


@pytest.mark.parametrize("scanned", [False, True])
def test_measured_widths(scanned):
    lm = tiny_model.language_model()
    params = lm.params
    if scanned:
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *params["layers"])
        params = {**params, "layers": stacked}
    table = costs.measure(lm.model, params, (1, 3))
    assert table.widths == (1, 3)
    assert min(table.forward) > 0
    assert min(table.top_ids) > 0
