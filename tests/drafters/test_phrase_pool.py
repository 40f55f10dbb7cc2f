"""The phrase pool in real rounds, against a plain Python oracle."""

import functools

import jax
import numpy as np
import pytest

from specjax.drafters.compose.with_suffixes import with_suffixes
from specjax.drafters.lookup.phrase_pool import phrase_pool
from specjax.drafters.none import none
from tests.drafters import replay
from tests.drafters.fixed import fixed

VOCAB, WAYS, NGRAM = 7, 4, 3
PROMPTS = [[1, 2, 3, 4, 5, 6], [0, 1, 2], [4, 4, 5, 4, 4, 5, 4, 4], [6] * 18]


@functools.cache
def chain_of_the_target():
    """What the target says, then a token that it does not, and on from there."""
    head = jax.jit(replay.scripted_target(VOCAB).head)
    tokens = [1]
    for position in range(30):
        hidden = np.array([[tokens[-1], position % replay.PERIOD]], np.float32)
        said = int(np.argmax(head({}, hidden)))
        tokens.append((said + 1) % VOCAB if position == 26 else said)
    return tuple(tokens[-6:])


def fixed_chain():
    """Drafts those tokens in every round: right, misplaced, or out of the blue."""
    tokens = chain_of_the_target()
    return fixed(*((token, at - 1, 0.5) for at, token in enumerate(tokens)))


class Oracle:
    """A chain of fixed tokens, and suffixes out of a dict of lists."""

    def __init__(self, chain, suffixes, harvest, correct, text):
        self.chain, self.suffixes = list(chain), suffixes
        self.rules, self.text = (harvest, correct), text
        self.width, self.pool = NGRAM - 1, {}
        self.counts = {"harvested": 0, "corrected": 0}

    def insert(self, key, phrase):
        known = self.pool.setdefault(key, [])
        if phrase in known:
            known.remove(phrase)
        known.append(phrase)
        del known[:-WAYS]

    def propose(self, text, room):
        own = self.chain[: room - 1]
        drafts = [(token, at - 1) for at, token in enumerate(own)]
        key = own[-1] if own else text[-1]
        newest = self.pool.get(key, [])[: -self.suffixes - 1 : -1]
        for level in range(min(self.width, max(room - 1 - len(own), 0))):
            for phrase in newest:
                above = len(drafts) - len(newest) if level else len(own) - 1
                drafts.append((phrase[level], above))
        return drafts

    def observe(self, seen):
        if seen.room:
            self.learn(seen)
        text = seen.text + seen.new
        if self.text:
            for end in range(seen.start + 1, seen.start + len(seen.after) + 1):
                if self.width <= end < len(text):
                    first = end - self.width
                    self.insert(text[first], tuple(text[first + 1 : end + 1]))

    def learn(self, seen):
        harvest, correct = self.rules
        if seen.top_ids is None:
            assert (harvest, correct) == ("none", "none")
            return
        said = [int(x) for x in seen.top_ids[seen.trunk :, 0]]
        chain = [token for (token, _), tag in self.nodes(seen) if tag < 0]
        answers = [int(seen.top_ids[seen.trunk - 1, 0]), *said[: len(chain)]]
        kept = 0
        while kept < min(len(chain), len(seen.new)) and chain[kept] == seen.new[kept]:
            kept += 1
        index = {tag: at for at, (_, tag) in enumerate(self.nodes(seen)) if tag >= 0}
        branches = []
        for at in range(self.suffixes):
            nodes = [index.get(at * self.width + step) for step in range(self.width)]
            if None not in nodes:
                tokens = tuple(seen.drafts[node][0] for node in nodes)
                branches.append((tokens, [said[node] for node in nodes]))
        before = chain[-1] if chain else seen.text[-1]
        found = self.harvest(harvest, chain, answers, kept, branches)
        changes = self.changes(correct, branches, answers[-1])
        for old, _ in changes:
            self.pool[before] = [x for x in self.pool[before] if x != old]
        for key, phrase in found:
            self.insert(key, phrase)
        for _, new in changes[::-1]:
            self.insert(before, new)
        self.counts["harvested"] += len(found)
        self.counts["corrected"] += sum(old != new for old, new in changes)

    def nodes(self, seen):
        """Drafts with their tags, those of the pool from 0 on."""
        tags = [tag - len(self.chain) for tag in seen.tags]
        return list(zip(seen.drafts, tags, strict=True))

    def harvest(self, rule, chain, answers, kept, branches):
        found, width = [], self.width
        if rule == "agreement":
            for at in range(kept, len(chain) - width + 1):
                if chain[at + 1 : at + width] == answers[at + 1 : at + width]:
                    phrase = answers[at + 1 : at + 1 + width]
                    found.append((chain[at], tuple(phrase)))
        if rule == "answers" and kept < len(chain):
            line = answers[kept:]
            for at in range(len(line)):
                whole = at + width < len(line)
                for tail in [[]] if whole else [after for _, after in branches]:
                    phrase = (line + tail)[at : at + width + 1]
                    found.append((phrase[0], tuple(phrase[1:])))
        return found

    def changes(self, rule, branches, first):
        changed = []
        for tokens, after in branches:
            new = (first, *after[:-1])
            if rule == "answers" or (rule == "agreement" and tokens[:-1] == new[:-1]):
                changed.append((tokens, new))
        return changed


@functools.cache
def replayed(harvest, correct, text):
    """Rounds that agree with the oracle's, draft for draft, and the oracles."""
    rules = {"harvest": harvest, "correct": correct, "text": text}
    pool = phrase_pool(
        vocab_size=VOCAB,
        ngram=NGRAM,
        max_phrases=WAYS,
        suffixes=2,
        buckets=0,
        **rules,
    )
    made = []

    def oracle():
        made.append(Oracle(chain_of_the_target(), 2, **rules))
        return made[-1]

    both = with_suffixes(fixed_chain(), pool)
    return replay.check(both, oracle, PROMPTS), made


@pytest.mark.parametrize(
    ("harvest", "correct", "text"),
    [
        ("agreement", "agreement", True),
        ("answers", "answers", False),
        ("none", "none", True),
    ],
)
def test_replays_like_the_oracle(harvest, correct, text):
    runs, made = replayed(harvest, correct, text)
    total = {key: sum(one.counts[key] for one in made) for key in made[0].counts}
    assert (total["harvested"] > 20) == (harvest != "none"), total
    assert (total["corrected"] > 0) == (correct != "none"), total
    assert any(tag >= len(chain_of_the_target()) for tag in last_tags(runs))


def last_tags(runs):
    """The highest tag of each round with drafts."""
    return [max(seen.tags) for run in runs for seen in run if seen.tags]


def test_a_round_emits_at_most_the_chain_a_phrase_and_one_more():
    runs, _ = replayed("agreement", "agreement", True)
    counts = [len(seen.new) for run in runs for seen in run if seen.room]
    assert min(counts) >= 1
    assert 1 < max(counts) <= len(chain_of_the_target()) + NGRAM


def test_alone_it_continues_the_text():
    pool = phrase_pool(ngram=3, suffixes=1, vocab_size=VOCAB, buckets=64)
    runs = replay.record(pool, [[1, 2, 3] * 4], rounds=12)
    hits = 0
    for seen in runs[0]:
        if seen.room:
            text = seen.text
            ends = [at for at in range(2, len(text)) if text[at - 2] == text[-1]]
            drafts = [token for token, _ in seen.drafts]
            assert drafts == (text[ends[-1] - 1 : ends[-1] + 1] if ends else [])
            hits += len(seen.path)
    assert hits > 5
    assert pool.bounds.branching == 1


def test_trees_too_small_to_learn_from():
    """A pool that drafts nothing, alone: each tree is a trunk of one token."""
    pool = phrase_pool(suffixes=0, text=False, vocab_size=VOCAB, buckets=64)
    plain = replay.record(none(), [[1, 2, 3]], rounds=3)
    found = replay.record(pool, [[1, 2, 3]], rounds=3)
    assert [seen.new for seen in found[0]] == [seen.new for seen in plain[0]]


def test_what_it_needs():
    assert phrase_pool().needs.top_k == 1
    assert phrase_pool(harvest="none", correct="none").needs.top_k == 0
    assert phrase_pool(harvest="none", suffixes=0).needs.top_k == 0


def test_bounds():
    made = phrase_pool(ngram=5, suffixes=3)
    assert made.bounds == (3 * 4, 4, 3)
    assert made.sources[0].num_tags == 12
    assert phrase_pool(suffixes=0).bounds == (0, 0, 0)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"ngram": 2}, "ngram"),
        ({"suffixes": -1}, "suffixes"),
        ({"suffixes": 3, "max_phrases": 2}, "suffixes"),
        ({"max_phrases": 0}, "max_phrases"),
        ({"harvest": "all"}, "harvest"),
        ({"correct": "all"}, "correct"),
        ({"buckets": 3}, "buckets"),
        ({"buckets": 0}, "vocab_size"),
        ({"vocab_size": -1}, "vocab_size"),
    ],
)
def test_bad_options(options, match):
    with pytest.raises(ValueError, match=f"phrase_pool: {match}"):
        phrase_pool(**options)
