"""What answers teach: worked examples, and the rules as plain loops."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.drafters.lookup import harvest

CHAIN, WIDTH, COUNT = 6, 3, 2  # sizes for random values
agreed, answered = jax.jit(harvest.agreed), jax.jit(harvest.answered)


def seen(chain, answers, *, width=WIDTH, kept=0, suffixes=(), pad=0):
    """One row.

    Args:
      chain: drafted tokens.
      answers: to what stands before the chain, then after each of its tokens.
      width: W.
      kept: tokens of the chain that were emitted.
      suffixes: (tokens, answers after each, whole); their key is the chain's end.
      pad: unused places at the chain's end.
    """

    def i32(values):
        return jnp.asarray(np.array(values, np.int32)[None])

    def of(at):
        values = np.array([suffix[at] for suffix in suffixes], np.int32)
        return jnp.asarray(values.reshape(1, len(suffixes), width))

    return harvest.Seen(
        chain=i32(list(chain) + [0] * pad),
        answer=i32(list(answers) + [0] * pad),
        length=jnp.asarray([len(chain)], jnp.int32),
        kept=jnp.asarray([kept], jnp.int32),
        suffix=of(0),
        suffix_answer=of(1),
        key=i32([chain[-1] if chain else 0] * len(suffixes)),
        key_answer=i32([answers[-1]] * len(suffixes)),
        whole=jnp.asarray(np.array([[suffix[2] for suffix in suffixes]], bool)),
    )


def pairs(found):
    """(key, phrase) of what counts, in order."""
    key, phrase, valid = (np.asarray(x)[0] for x in found)
    return [(int(key[i]), tuple(phrase[i].tolist())) for i in np.flatnonzero(valid)]


A = [10, 11, 12, 13, 14]


@pytest.mark.parametrize(
    ("width", "answers", "expected"),
    [
        # 10: 11 12 agree with A and 99 is the last; 11: 12 agrees, 99 does not.
        (3, [11, 12, 99, 14, 15], [(10, (11, 12, 99))]),
        (
            3,
            [11, 12, 13, 14, 15],
            [(10, (11, 12, 13)), (11, (12, 13, 14)), (12, (13, 14, 15))],
        ),
        # With one token to agree: 12: 99 does not, 13: 14 does.
        (2, [11, 12, 99, 14, 15], [(10, (11, 12)), (11, (12, 99)), (13, (14, 15))]),
        (5, [11, 12, 13, 14, 15], [(10, (11, 12, 13, 14, 15))]),
        (6, [11, 12, 13, 14, 15], []),  # longer than the chain
    ],
)
def test_agreement(width, answers, expected):
    assert pairs(harvest.agreed(seen(A, [1, *answers], width=width))) == expected


def test_agreement_begins_at_the_first_rejected_token():
    """With 10 and 11 kept, a phrase of three would begin at 12 at the earliest."""
    row = seen(A, [10, 11, 12, 13, 14, 15], kept=2)
    assert pairs(harvest.agreed(row)) == [(12, (13, 14, 15))]
    assert pairs(harvest.agreed(row._replace(kept=row.length))) == []


def test_answers_run_on_into_the_suffixes():
    """R = 21 22 23 24 after the last kept token and three rejected ones."""
    suffixes = [([1, 2, 3], [31, 32, 33], True), ([4, 5, 6], [41, 42, 43], True)]
    row = seen([7, 8, 9], [21, 22, 23, 24], suffixes=suffixes, pad=2)
    assert pairs(harvest.answered(row)) == [
        (21, (22, 23, 24)),
        (22, (23, 24, 31)),
        (22, (23, 24, 41)),
        (23, (24, 31, 32)),
        (23, (24, 41, 42)),
        (24, (31, 32, 33)),
        (24, (41, 42, 43)),
    ]


def test_answers_without_suffixes_end_with_the_chain():
    row = seen([7, 8, 9], [21, 22, 23, 24])
    assert pairs(harvest.answered(row)) == [(21, (22, 23, 24))]


def test_answers_to_a_chain_that_was_kept_are_left_alone():
    row = seen([7, 8, 9], [7, 8, 9, 24], kept=3)
    assert pairs(harvest.answered(row)) == []


# After "5" the target says 7. Suffix 7 8 9 is answered 8 5 1 and suffix 7 3 3 is
# answered 8 0 2: in their place it says 7 8 5 and 7 8 0.
SUFFIXES = [([7, 8, 9], [8, 5, 1], True), ([7, 3, 3], [8, 0, 2], True)]


def test_corrections_where_only_the_last_token_differs():
    """7 8 is what was answered as well, so 5 belongs there; 7 3 is another text."""
    old, new = harvest.corrected(seen([5], [5, 7], suffixes=SUFFIXES), agree=True)
    assert pairs(old) == [(5, (7, 8, 9))]
    assert pairs(new) == [(5, (7, 8, 5))]


def test_corrections_everywhere_the_newest_last():
    old, new = harvest.corrected(seen([5], [5, 7], suffixes=SUFFIXES), agree=False)
    assert pairs(old) == [(5, (7, 3, 3)), (5, (7, 8, 9))]
    assert pairs(new) == [(5, (7, 8, 0)), (5, (7, 8, 5))]


def test_a_suffix_that_was_cut_is_not_corrected():
    cut = [(tokens, answers, False) for tokens, answers, _ in SUFFIXES]
    for agree in (True, False):
        _, new = harvest.corrected(seen([5], [5, 7], suffixes=cut), agree=agree)
        assert pairs(new) == []


WORD = st.integers(0, 2)
SUFFIX = st.tuples(*[st.lists(WORD, min_size=WIDTH, max_size=WIDTH)] * 2, st.booleans())


@st.composite
def rows(draw):
    """Arguments of ``seen`` of one shape."""
    length = draw(st.integers(0, CHAIN))
    chain = draw(st.lists(WORD, min_size=length, max_size=length))
    answers = draw(st.lists(WORD, min_size=length + 1, max_size=length + 1))
    suffixes = draw(st.lists(SUFFIX, min_size=COUNT, max_size=COUNT))
    kept = draw(st.integers(0, length))
    return chain, answers, kept, suffixes


@hypothesis.given(rows())
def test_agreement_as_a_loop(row):
    chain, answers, kept, suffixes = row
    expected = []
    for start in range(kept, len(chain)):
        phrase = []
        for at in range(start, len(chain)):
            phrase.append(answers[at + 1])
            if len(phrase) == WIDTH:
                expected.append((chain[start], tuple(phrase)))
                break
            if at + 1 < len(chain) and chain[at + 1] != answers[at + 1]:
                break
    made = seen(chain, answers, kept=kept, suffixes=suffixes, pad=CHAIN - len(chain))
    assert pairs(agreed(made)) == expected


@hypothesis.given(rows())
def test_answers_as_a_loop(row):
    chain, answers, kept, suffixes = row
    expected = []
    line = answers[kept:]
    for start in range(len(line) if kept < len(chain) else 0):
        if start + WIDTH < len(line):
            expected.append((line[start], tuple(line[start + 1 : start + 1 + WIDTH])))
            continue
        for _, after, whole in suffixes:
            if whole:
                longer = (line + after)[start : start + WIDTH + 1]
                expected.append((longer[0], tuple(longer[1:])))
    made = seen(chain, answers, kept=kept, suffixes=suffixes, pad=CHAIN - len(chain))
    assert pairs(answered(made)) == expected
