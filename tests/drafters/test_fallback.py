"""One drafter, and another where it has nothing to say."""

import pytest

from specjax.drafters.compose.fallback import fallback
from specjax.drafters.lookup.prompt_lookup import prompt_lookup
from tests.drafters import replay
from tests.drafters.fixed import fixed

SECOND = fixed((1, -1, 0.5), (2, 0, 0.5), name="second")
PROMPTS = [[1, 2, 3, 1, 2], [6, 5, 4, 3], [0, 1, 2, 3, 4, 5, 6]]


class Oracle:
    """The last two tokens' earlier continuation, else 1 2."""

    @staticmethod
    def go_on(text, found):
        """Three tokens, of a text that repeats from there."""
        return [text[found + i % (len(text) - found)] for i in range(3)]

    def propose(self, text, room):
        found = None
        for j in range(1, len(text) - 1):
            if text[j - 1 : j + 1] == text[-2:]:
                found = j + 1
        if found is None:
            drafts = [1, 2]
        else:
            drafts = self.go_on(text, found)
        return [(token, at - 1) for at, token in enumerate(drafts[: room - 1])]

    def observe(self, seen):
        pass


def test_the_second_drafts_where_the_first_does_not():
    first = prompt_lookup(min_ngram=2, max_ngram=2, max_draft=3)
    runs = replay.check(fallback(first, SECOND), Oracle, PROMPTS, temperature=0.7)
    by_second = [seen for run in runs for seen in run if max(seen.tags, default=0) >= 3]
    by_first = [seen for run in runs for seen in run if seen.tags[:1] == [0]]
    assert len(by_second) > 5
    assert len(by_first) > 5


class Short(Oracle):
    """As far as the text goes, which may be less than the drafter has room for."""

    @staticmethod
    def go_on(text, found):
        return text[found : found + 5]


def test_the_second_does_not_fill_up_what_the_first_leaves():
    first = prompt_lookup(
        min_ngram=2, max_ngram=2, max_draft=5, long_match=1, overrun="cut"
    )
    runs = replay.check(fallback(first, SECOND), Short, PROMPTS, temperature=0.7)
    short = [seen for run in runs for seen in run if seen.tags in ([0], [0, 1])]
    assert len(short) > 5


def test_a_chain_stays_a_chain():
    both = fallback(prompt_lookup(max_draft=7), SECOND)
    assert both.bounds == (7, 7, 1)
    broad = fixed((1, -1, 0.5), (2, -1, 0.5))
    assert fallback(SECOND, broad).bounds == (2, 2, 2)


def test_one_child_is_too_few():
    with pytest.raises(ValueError, match="at least 2 drafters"):
        fallback(SECOND)
