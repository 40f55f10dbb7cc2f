"""Trees for heads that do not see each other: which guesses to put together.

A choice names a node by ranks, see ``specjax.core.template``. The published trees were
chosen by what heads of Vicuna got right on other texts; nothing finds out by itself
what is best for other heads: see ``template.from_ranks``.
"""

import itertools

from specjax import checks

Choices = tuple[tuple[int, ...], ...]

_RANKS = 10  # of each head that any tree looks at
_DEPTH = 4

# By name, how many best continuations each choice has, as "choice:how many"; "-" is the
# anchor.
_PUBLISHED = {
    "mc_sim_7b_63": (
        "-:10 0:10 1:7 2:3 3:2 4:1 5:1 6:1 7:1 8:1 9:1 "
        "00:10 01:3 02:2 03:1 04:1 05:1 06:1 07:1 10:2 20:1 000:2"
    ),
    "vicuna_7b_stage1": (
        "-:10 0:10 1:7 2:4 3:3 4:2 5:2 6:1 7:1 8:1 9:1 "
        "00:9 01:3 02:2 03:1 04:1 05:1 10:2 20:1 000:1"
    ),
    "vicuna_7b_stage2": (
        "-:10 0:10 1:5 2:2 3:2 4:1 5:1 6:1 7:1 "
        "00:9 01:4 02:2 03:1 04:1 05:1 10:3 11:1 20:1 000:4 001:1 002:1 010:1"
    ),
}
NAMES = tuple(_PUBLISHED)


def published(name: str) -> Choices:
    """The choices of a published tree of 63 nodes.

    Args:
      name: one of ``NAMES``.

    Raises:
      ValueError: there is none of that name.

    Source: Medusa (Cai et al. 2024), the trees of its repository for Vicuna-7B.
    """
    checks.one_of("medusa", "tree", name, NAMES)
    choices = []
    for entry in _PUBLISHED[name].split():
        parent, _, count = entry.partition(":")
        above = () if parent == "-" else tuple(map(int, parent))
        choices += [(*above, rank) for rank in range(int(count))]
    return tuple(choices)


def chance_of(choice: tuple[int, ...]) -> float:
    """How likely a node is to be kept, by a guess at what heads get right.

    The product along its path of ``0.5 * 0.7^(d - 1) / (r + 1)^2.3`` at depth d and
    rank r. Of such forms it is the one by which the 63 likeliest nodes agree best with
    the published trees: 55, 56 and 55 of them are the same.
    """
    chance = 1.0
    for above, rank in enumerate(choice):
        chance *= 0.5 * 0.7**above / (rank + 1) ** 2.3
    return chance


def likeliest(nodes: int, depth: int = _DEPTH, ranks: int = _RANKS) -> Choices:
    """The nodes that are likeliest to be kept, parents among them.

    Args:
      nodes: how many; all there are if fewer.
      depth: of the tree at most, such as the number of heads.
      ranks: only ranks below count.
    """
    every = itertools.chain.from_iterable(
        itertools.product(range(min(ranks, _RANKS)), repeat=level)
        for level in range(1, min(depth, _DEPTH) + 1)
    )
    return first(tuple(every), nodes)


def first(choices: Choices, nodes: int | None) -> Choices:
    """So many of a tree's nodes, the likeliest first; all of them if None."""

    def key(choice: tuple[int, ...]):
        return -round(chance_of(choice), 12), len(choice), choice

    return tuple(sorted(choices, key=key)[:nodes])
