"""Several drafters side by side, under one budget."""

from specjax import checks
from specjax.core import contracts
from specjax.core import tree as tree_lib
from specjax.core import union as union_lib
from specjax.drafters import equipped
from specjax.drafters.compose import family


@equipped.combinator
def merge(*children: contracts.Drafter, budget: int = 15) -> contracts.Drafter:
    """Unites what all children draft, as one trie, and keeps the likeliest nodes.

    All children continue the tree as it was found. Equal continuations become one
    node, with the highest confidence that a child gives it. Of all nodes the
    ``budget`` with the highest product of confidences along their path are kept.

    Args:
      *children: two or more drafters; on ties the earlier ones go first.
      budget: most nodes; 15 of them and the trunk fill a rung of the ladder.

    Raises:
      ValueError: fewer than two children, or ``budget`` is below 1.
      TypeError: it is no integer.

    Source: our own. SuffixDecoding (section 3 of its paper) chooses one of two trees
    by score; the union under one budget follows EAGLE-2's choice of nodes by the
    product of confidences.
    """
    family.check("merge", children, least=2)
    checks.at_least("merge", 1, budget=budget)
    bounds = [child.bounds for child in children]
    total = sum(bound.nodes for bound in bounds)
    nodes = min(budget, total)

    def propose(params, states, view, tree):
        wide = tree_lib.widen(tree, tree.slots + total)
        united, kept = wide, []
        for index in range(len(children)):
            grown, state = family.propose(
                children, index, params, states[index], view, wide
            )
            united = tree_lib.graft(united, grown, wide.num_nodes)
            kept.append(state)
        united = union_lib.fold(united, tree.num_nodes)
        united = union_lib.keep_likeliest(united, budget, tree.num_nodes)
        return tree_lib.cut(united, tree.slots), tuple(kept)

    limits = contracts.Bounds(
        nodes=nodes,
        depth=min(nodes, max(bound.depth for bound in bounds)),
        branching=min(nodes, sum(bound.branching for bound in bounds)),
    )
    return family.drafter(children, propose, limits, laws=False)
