"""`drafters`: what there is, and what it takes."""

import json

import pytest

from specjax import drafters


def test_every_drafter_has_a_line(run):
    result = run("drafters")
    assert result.exit_code == 0, result.stderr
    listed = {line.split()[0]: line for line in result.stdout.splitlines()[1:]}
    assert set(drafters.names()) <= set(listed)
    assert "Drafts by the votes of earlier matches" in listed["suffix"]


def test_options_of_one(run):
    lines = run("drafters", "horizontal").stdout.splitlines()
    assert lines[0].startswith("horizontal: Chains drafters")
    rows = [line.rstrip().split(maxsplit=3) for line in lines]
    assert ["children", "drafters", "required"] in [row[:3] for row in rows]
    assert ["tokens", "ints", "5+10", "what each child adds, at least 1 each."] in rows
    assert "integers such as 5+10" in run("drafters", "horizontal").stdout


def test_one_without_options(run):
    assert run("drafters", "none").stdout == "none: A drafter that never drafts.\n"


def test_all_as_json(run):
    listed = json.loads(run("drafters", "--json").stdout)
    assert [one["name"] for one in listed] == list(drafters.names())
    assert listed[0]["summary"] == "A drafter that never drafts."


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("draft_model", {"layers", "model", "max_draft", "laws"}),
        ("max_gram", {"store", "max_draft", "max_ngram", "recent", "compat"}),
        ("merge", {"children", "budget"}),
        ("auto", {"costs"}),
    ],
)
def test_one_as_json_has_what_the_builder_takes_too(run, name, expected):
    described = json.loads(run("drafters", name, "--json").stdout)
    assert {option["name"] for option in described["options"]} == expected


def test_an_option_as_json(run):
    (_, budget) = json.loads(run("drafters", "merge", "--json").stdout)["options"]
    assert budget == {
        "name": "budget",
        "type": "int",
        "value": "an integer",
        "default": 15,
        "required": False,
        "meaning": "most nodes; 15 of them and the trunk fill a rung of the ladder.",
    }


def test_an_unknown_one(run):
    result = run("drafters", "sufix")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "did you mean 'suffix'?" in result.stderr
