"""Plots show all that they are drawn from."""

import pytest

from specjax.evaluation import plots, table

DRAFTERS = ["none", "$y_{$", *(f"prompt_lookup:max_draft={n}" for n in range(7))]


@pytest.fixture(scope="module")
def rows():
    return [
        {
            "question_id": f"{category} {drafter}",
            "category": category,
            "drafter": drafter,
            "identical": True,
            "decode_seconds": 1.0 / (1 + number),
            "new_tokens": 20,
            "target_calls": 10,
            "drafted": 20,
            "accepted": 9,
            "accepted_per_depth": [6, 3] if number else [],
        }
        for category in ("writing", "$x^{$")  # half a formula, were it one
        for number, drafter in enumerate(DRAFTERS)
    ]


@pytest.fixture(scope="module", params=["bars", "acceptance"])
def picture(request, rows):
    if request.param == "bars":
        return plots._bars(table.summarise(rows), "speedup", "label")
    return plots._acceptance(rows)


def test_the_legend_lies_beside_the_data(picture):
    picture.draw_without_rendering()
    (legend,), (axes,) = picture.legends, picture.axes
    assert not legend.get_window_extent().overlaps(axes.get_window_extent())
    assert picture.bbox.fully_contains(*legend.get_window_extent().p0)
    assert picture.bbox.fully_contains(*legend.get_window_extent().p1)


def test_every_drafter_is_in_the_legend(picture):
    named = {text.get_text() for text in picture.legends[0].get_texts()}
    assert named >= set(DRAFTERS[1:])


def test_a_long_legend_leaves_the_axes_their_size(picture):
    picture.draw_without_rendering()
    assert picture.axes[0].get_window_extent().height > 2.5 * picture.dpi  # inches
