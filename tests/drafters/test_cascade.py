"""The recursion of reviews, against itself in plain Python and as a recipe."""

import numpy as np
import pytest

from specjax import Engine, drafters
from specjax.drafters import equipped
from specjax.drafters.compose.cascade import cascade, nested_params
from specjax.drafters.lookup.max_gram import max_gram
from tests import tiny_model, tiny_store
from tests.drafters import replay
from tests.drafters.max_gram_oracle import oracle
from tests.drafters.table_target import table, table_target

PUBLISHED = ((5, 14, 10), (0, 1, 10), (0, 0, 10))
VOCAB = 7  # of the scripted target
MODEL = table_target(VOCAB)
TABLES = (table(VOCAB, 3), table(VOCAB, 4))


@pytest.mark.parametrize(
    ("levels", "k", "trim", "depth"),
    [
        (0, ((10,),), False, 10),
        # A review of 10 emits 11, beyond the 1 that is asked for; then, from 10 of
        # the goal of 11, a call more of Max-Gram.
        (1, ((1, 10), (0, 10)), False, 10 + 10),
        # Reviews of 20 emit 21, from 4 of 5 on; of 10 emit 11, from 18 on; 10 from 28.
        (2, PUBLISHED, False, max(4 + 21, 18 + 11, 28 + 10)),
        (2, PUBLISHED, True, 29),
        (2, ((5, 14, 0), (0, 1, 10), (0, 0, 10)), False, 18 + 11),
        (1, ((5, 0), (0, 0)), True, 5),
        (1, ((0, 0), (0, 0)), True, 0),
    ],
)
def test_bounds_of_a_cascade(levels, k, trim, depth):
    made = cascade([MODEL] * levels, k=k, trim=trim)
    assert made.bounds == (depth, depth, min(depth, 1))


def test_cumulative_entries_are_sums_of_increments():
    sums = ((5, 19, 29), (0, 1, 11), (0, 0, 10))
    paper = cascade([MODEL] * 2, k=sums, k_mode="cumulative")
    assert paper is cascade([MODEL] * 2, k=PUBLISHED)


def test_models_without_tokens_are_left_out():
    left = cascade([MODEL], k=((0, 10), (0, 3)))
    assert left is max_gram(max_draft=10, max_ngram=16, recent=False)
    assert nested_params(["unused"], k=((0, 10), (0, 3)), last={"successor": 1}) == {
        "successor": 1
    }
    assert cascade([MODEL], k=((0, 0), (0, 3))) is drafters.none()


def test_params_nest_as_the_drafters_do():
    small = {"model": "small", "drafter": {}}
    big = {"model": "big", "drafter": (small, {})}
    assert nested_params(["big", "small"], k=PUBLISHED) == (big, small, {})
    alone = ((2, 0, 0), (0, 0, 0), (0, 0, 1))
    assert nested_params(["big", "small"], k=alone) == (
        {"model": "big", "drafter": {}},
    )


@pytest.mark.parametrize(
    "k",
    [
        ((5, 10),),
        ((5, 10), (10,)),
        ((5, 10), (1, 10)),
        ((5, -1), (0, 10)),
        ((5, 1.5), (0, 10)),
        ((5, 10, 1), (0, 10, 1), (0, 0, 1)),
    ],
)
def test_bad_matrix(k):
    with pytest.raises(ValueError, match="cascade: k must be 2 rows of 2"):
        cascade([MODEL], k=k)


def test_other_bad_options():
    with pytest.raises(ValueError, match="must not fall"):
        cascade([MODEL], k=((5, 4), (0, 10)), k_mode="cumulative")
    with pytest.raises(ValueError, match="k_mode"):
        cascade([MODEL], k_mode="sums")
    with pytest.raises(ValueError, match="cascade: lenience"):
        cascade([MODEL], lenience=0.5)
    with pytest.raises(ValueError, match="give k for 3 models, 4 rows"):
        cascade([MODEL] * 3)


class Recursion:
    """The recursion on lists, greedy: a step for a reviewer, and its reviews."""

    def __init__(self, tables, k, lenience, trim):
        self.lenience, self.trim, self.k = lenience, trim, k
        self.tables = [np.asarray(logits, np.float64) for logits in tables]

    def step(self, level, text, room):
        """Tokens drafted by the drafters from ``level`` on."""
        row, draft = self.k[level][level:], []
        for index, count in enumerate(row):
            goal = sum(row[: index + 1]) if count else 0
            while len(draft) < min(goal, room - 1):
                most = (min(goal, room - 1) if self.trim else room - 1) - len(draft)
                if level + index == len(self.tables):
                    most = min(most, count if self.trim else 10)
                    new = oracle(text + draft, most)
                else:
                    most = min(most, count) if self.trim else most
                    new = self.reviews(level + index, text + draft, most)
                if not new:
                    break
                draft += new
        return draft

    def reviews(self, level, text, most):
        emitted = self.review(level, text, most)
        while self.trim and len(emitted) < most:
            emitted += self.review(level, text + emitted, most - len(emitted))
        return emitted

    def review(self, level, text, most):
        """What the model keeps of the step below it, and one token of its own."""
        emitted = []
        for drafted in [*self.step(level + 1, text, most), None]:
            before, last = (text + emitted)[-2:]
            logits = self.tables[level][before, last]
            law = np.exp(logits - logits.max())
            law /= law.sum()
            kept = drafted is not None and self.lenience * law[drafted] > 1
            emitted.append(drafted if kept else int(law.argmax()))
            if emitted[-1] != drafted:
                break
        return emitted

    def propose(self, text, room):
        return [(token, at - 1) for at, token in enumerate(self.step(0, text, room))]

    def observe(self, seen):
        pass


@pytest.mark.parametrize(
    ("models", "k", "lenience", "trim"),
    [
        (1, ((4, 3), (0, 3)), 3.0, True),
        (2, ((3, 2, 2), (0, 1, 3), (0, 0, 2)), 1.0, True),
        (2, ((3, 2, 2), (0, 1, 3), (0, 0, 2)), 4.0, False),
    ],
)
def test_the_recursion_in_real_rounds(models, k, lenience, trim):
    tables = TABLES[:models]
    made = equipped.Equipped(
        cascade([MODEL] * models, k=k, lenience=lenience, trim=trim),
        nested_params(tables, k=k),
    )
    prompts = [[1, 2, 3, 1, 2], [4, 4], [5, 6, 5, 6, 5], [0] * 9]
    runs = replay.check(
        made,
        lambda: Recursion(tables, k, lenience, trim),
        prompts,
        max_new_tokens=30,
        rounds=12,
    )
    for run in runs:
        assert all(len(seen.new) >= 1 for seen in run[1:])
        assert all(len(seen.drafts) <= made.drafter.bounds.nodes for seen in run)
    assert max(len(seen.drafts) for run in runs for seen in run) > sum(k[0]) - 1


TEXT = "the ban and the ban and the"
WIDTHS = {"widths": (1,), "prompt_widths": (16,)}
RECIPES = {
    "vertical": {"layers": 1, "k": "4,0/0,3", "lenience": "3"},
    "horizontal": {"layers": "2", "k": [[2, 3], [0, 0]]},
    "both": {"layers": "2+1", "k": "2,2,3/0,1,3/0,0,3", "lenience": 3.0},
}


@pytest.fixture(scope="module")
def lm():
    return tiny_model.language_model(num_layers=3)


@pytest.fixture(scope="module")
def plain(lm):
    return Engine(lm, **WIDTHS)


@pytest.mark.parametrize("recipe", RECIPES)
def test_same_tokens_as_plain_decoding(lm, plain, recipe):
    engine = Engine(lm, drafters.make("cascade", lm, RECIPES[recipe]), **WIDTHS)
    for options in ({}, {"temperature": 1.0, "seed": 3}):
        ours = engine.generate(TEXT, max_new_tokens=24, **options)
        theirs = plain.generate(TEXT, max_new_tokens=24, **options)
        assert ours.tokens == theirs.tokens
        assert ours.target_calls < ours.new_tokens
        assert ours.drafted > 0


def test_by_default_it_is_max_gram_alone(lm):
    made = drafters.make("cascade", lm)
    assert made.drafter is max_gram(max_draft=10, max_ngram=16, recent=False)
    assert made.params == {}
    assert drafters.make("cascade", lm, {"max_draft": "4"}).drafter.bounds.nodes == 4


@pytest.mark.parametrize(
    ("acceptances", "costs"),
    [("0.8,0.3/0,0.6", "0.2,0"), ([[0.8, 0.3], [0, 0.6]], [0.2, 0])],
)
def test_a_matrix_by_acceptances_and_costs(lm, acceptances, costs):
    options = {"layers": 1, "acceptances": acceptances, "costs": costs}
    made = drafters.make(
        "cascade", lm, {**options, "max_draft": 6, "k_mode": "cumulative"}
    )
    best = drafters.best_matrix([[0.8, 0.3], [0.0, 0.6]], [0.2, 0.0], 6)
    assert best[0][0] > 0 < best[0][1]
    assert (
        made.drafter is drafters.make("cascade", lm, {"layers": 1, "k": best}).drafter
    )


def test_a_store_gives_max_gram_its_successors(lm):
    made = drafters.make("cascade", lm, {"store": tiny_store.path(), "layers": 1})
    below, last = made.params
    assert last["successor"].shape == (lm.model.config.vocab_size,)
    assert below["drafter"] is last


def test_layers_share_the_target_s_arrays(lm):
    made = drafters.make("cascade", lm, {"layers": [2, 1]})
    big, small, _ = made.params
    assert big["model"]["embed"] is small["model"]["embed"] is lm.params["embed"]
    assert [len(held["model"]["layers"]) for held in (big, small)] == [2, 1]
    assert made.fingerprint == lm.fingerprint
    assert [source.name for source in made.drafter.sources] == [
        "model_2",
        "model_1",
        "max_gram",
    ]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"layers": 1, "model": "x"}, "not both"),
        ({"layers": "1+2"}, "must fall"),
        ({"layers": 9}, "layers"),
        ({"layers": 1, "k": "5,x/0,1"}, "'k' must be rows"),
        ({"k": 5}, "'k' must be rows"),
        ({"layers": 1, "max_draft": 4}, "max_draft is for Max-Gram alone"),
        ({"acceptances": "0.5"}, "both acceptances and costs"),
        ({"costs": "0"}, "both acceptances and costs"),
        ({"acceptances": "0.5", "costs": "0", "k": "4"}, "give k, or"),
        (
            {"acceptances": "much", "costs": "0"},
            "'acceptances' must be rows of numbers",
        ),
        ({"acceptances": "0.5", "costs": 0.0}, "'costs' must be numbers"),
        ({"acceptances": "0.5", "costs": "0,0.1"}, "2 rows of 2"),
        ({"layers": 1, "acceptances": "0.5", "costs": "0"}, "k must be 2 rows"),
        ({"max_draft": 0}, "max_draft must be at least 1"),
        ({"lenience": "much"}, "lenience"),
        ({"depth": 3}, "unknown option 'depth'"),
    ],
)
def test_bad_recipes(lm, options, found):
    with pytest.raises(ValueError, match=found):
        drafters.make("cascade", lm, options)
