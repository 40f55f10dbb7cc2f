"""Several drafters under one budget."""

import pytest

from specjax.drafters import equipped
from specjax.drafters.compose.merge import merge
from tests.drafters import replay
from tests.drafters.fixed import fixed

LONG = fixed((1, -1, 0.9), (2, 0, 0.5), (3, 1, 0.5), name="long")
BROAD = fixed((1, -1, 0.3), (4, -1, 0.4), (5, -1, 0.2), (6, 0, 0.9), name="broad")
PROMPTS = [[1, 2, 3], [4, 5, 6, 0, 1, 2], [0] * 5]


def drafts(drafter, **options):
    """(token, parent) of the drafts of a round with room for all, and their tags."""
    first = next(seen for seen in replay.record(drafter, PROMPTS[:1])[0] if seen.room)
    return list(zip(first.drafts, first.tags, strict=True))


def test_the_likeliest_of_both_are_kept():
    # Chances along the path: 1 0.9 (the higher of both), 1-2 0.45, 1-2-3 0.225,
    # 4 0.4, 5 0.2, 1-6 0.9 * 0.9 = 0.81. The best four of these, in slot order:
    expected = [((1, -1), 0), ((2, 0), 1), ((4, -1), 4), ((6, 0), 6)]
    assert drafts(merge(LONG, BROAD, budget=4)) == expected


def test_a_budget_for_all():
    found = {node for node, _ in drafts(merge(LONG, BROAD, budget=16))}
    assert found == {(1, -1), (2, 0), (3, 1), (4, -1), (5, -1), (6, 0)}


def test_equal_nodes_count_for_the_first_child():
    tags = dict(drafts(merge(BROAD, LONG, budget=16)))
    assert tags[1, -1] == 0  # of BROAD; LONG's begin at 4
    assert tags[2, 0] == 5


def test_bounds_and_sources():
    both = merge(LONG, BROAD, budget=5)
    assert both.bounds == (5, 3, 1 + 3)
    assert [source.name for source in both.sources] == ["long", "broad"]


def test_children_observe_their_own_nodes():
    made = merge(LONG, BROAD, budget=3)  # keeps 1 and 1-2 of LONG, 1-6 of BROAD
    runs = replay.record(made, PROMPTS, max_new_tokens=40)
    full = [sum(len(seen.drafts) == 3 for seen in run) for run in runs]
    assert min(full) > 3
    for run in runs:
        for seen in run:
            assert len(seen.drafts) <= 3


def test_needs_are_united_and_handed_out():
    first = fixed((1, -1, 0.5), top_k=2, features=(-1,))
    second = fixed((2, -1, 0.5), top_k=4)
    third = fixed((3, -1, 0.5), features=(1, -1))
    united = merge(first, second, third)
    assert united.needs.top_k == 4
    assert united.needs.features == (-1, 1)
    # `fixed` asserts that every child gets the widths that it asked for.
    assert replay.record(united, PROMPTS, rounds=2)


def test_params_of_equipped_children():
    held = equipped.Equipped(LONG, {"weights": 1}, "words", "long", 7)
    made = merge(held, BROAD, budget=4)
    assert made.params == ({"weights": 1}, {})
    assert made.fingerprint == "words"
    assert made.vocab_size == 7
    assert made.label == "merge(long, broad)"
    assert merge(LONG, BROAD, budget=4) is merge(LONG, BROAD, budget=4)


def test_children_of_different_vocabularies_are_refused():
    one = equipped.Equipped(LONG, {}, "words", "one", 7)
    other = equipped.Equipped(BROAD, {}, "words", "other", 8)
    with pytest.raises(ValueError, match=r"merge: .*different vocabularies"):
        merge(one, other)


@pytest.mark.parametrize("budget", [0, -1])
def test_bad_budget(budget):
    with pytest.raises(ValueError, match="budget"):
        merge(LONG, BROAD, budget=budget)


def test_one_child_is_too_few():
    with pytest.raises(ValueError, match="at least 2 drafters"):
        merge(LONG)


def test_depth_is_bounded_by_the_budget():
    assert merge(LONG, BROAD, budget=2).bounds == (2, 2, 2)


def test_one_label_does_not_hide_another_tokenizer():
    one = equipped.Equipped(LONG, {}, "words", "same", 7)
    other = equipped.Equipped(BROAD, {}, "others", "same", 7)
    with pytest.raises(ValueError, match=r"merge: .*different tokenizers"):
        merge(one, other)


def test_children_made_for_one_ladder_keep_it():
    one = equipped.Equipped(LONG, {}, widths=(1, 4))
    assert merge(one, BROAD).widths == (1, 4)
    with pytest.raises(ValueError, match=r"merge: .*different ladders"):
        merge(one, equipped.Equipped(BROAD, {}, widths=(1, 8)))
