"""Draft trees: layout, visibility and the accept walks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.trees import (
    MAX_NODES,
    MAX_RANK,
    DraftTree,
    Hedge,
    TreeShape,
    TreeShapeError,
    Walk,
    ancestor_mask,
    parse_tree_shape,
    positions,
    walk_chain,
    walk_tree,
)

SHAPES = st.lists(st.integers(1, MAX_RANK), min_size=1, max_size=MAX_NODES).filter(
    lambda counts: sum(counts) <= MAX_NODES
)


@pytest.mark.parametrize(
    "raw", ["", "0", "1,0", "5", "2,2,2,2", "1,1,1,1,1,1,1,1", "1,x", "1,-1", "1,,2", "256", "1.0"]
)
def test_shapes_out_of_limits_are_refused_by_name(raw: str) -> None:
    with pytest.raises(TreeShapeError, match="tree_shape="):
        parse_tree_shape(raw)


def test_shape_text() -> None:
    shape = parse_tree_shape(" 1, 2 ,2,2")
    assert shape is not None and shape.counts == (1, 2, 2, 2)
    assert (shape.spine_len, shape.num_nodes, shape.verify_width) == (4, 7, 8)
    assert parse_tree_shape(None) is None


@given(st.text(max_size=10))
def test_any_text_is_a_legal_shape_or_refused(raw: str) -> None:
    try:
        shape = parse_tree_shape(raw)
    except TreeShapeError:
        return
    assert shape is not None and 2 <= shape.verify_width <= 8


def test_shape_ids_differ() -> None:
    assert TreeShape(counts=(1, 2)).shape_id == 0x12
    assert TreeShape(counts=(2, 1)).shape_id == 0x21
    assert TreeShape(counts=(1, 2, 2, 2)).shape_id == 0x1222


@given(SHAPES, SHAPES)
def test_one_id_per_shape(a: list[int], b: list[int]) -> None:
    ids = TreeShape(counts=tuple(a)).shape_id, TreeShape(counts=tuple(b)).shape_id
    assert (ids[0] == ids[1]) is (a == b)
    assert max(ids) < 2**64


def test_layout_of_two_two() -> None:
    shape = TreeShape(counts=(2, 2))
    assert shape.depths() == (0, 1, 2, 1, 2)
    assert shape.parents() == (-1, 0, 1, 0, 1)
    assert shape.hedge_slots() == ((1, 2), (2, 2))
    assert positions(shape, 10) == (10, 11, 12, 11, 12)


def test_mask_of_two_two() -> None:
    mask = ancestor_mask(TreeShape(counts=(2, 2)).parents())
    visible = [set(np.flatnonzero(row)) for row in mask]
    assert visible == [{0}, {0, 1}, {0, 1, 2}, {0, 3}, {0, 1, 4}]


@given(SHAPES)
def test_rows_see_their_ancestors_and_nobody_else(counts: list[int]) -> None:
    shape = TreeShape(counts=tuple(counts))
    parents = shape.parents()
    mask = ancestor_mask(parents)
    assert mask.shape == (shape.verify_width, shape.verify_width)
    assert mask.dtype == np.bool_
    for row in range(shape.verify_width):
        seen, node = set(), row
        while node >= 0:
            seen.add(node)
            node = parents[node]
        assert set(np.flatnonzero(mask[row])) == seen
        assert len(seen) == shape.depths()[row] + 1


def test_chain_shape_is_the_causal_mask() -> None:
    shape = TreeShape.chain(5)
    assert shape.is_chain
    assert not TreeShape(counts=(1, 2)).is_chain
    assert np.array_equal(ancestor_mask(shape.parents()), np.tril(np.ones((6, 6), dtype=bool)))
    assert shape.depths() == tuple(range(6))


@pytest.mark.parametrize("parents", [(0,), (1, -1), (-1, 1), (-1, -2)])
def test_parents_after_their_children_are_refused(parents: tuple[int, ...]) -> None:
    with pytest.raises(TreeShapeError, match="parents out of order"):
        ancestor_mask(parents)


def test_full_spine_is_accepted() -> None:
    walk = walk_tree(DraftTree(spine=(10, 20)), [10, 20, 99])
    assert walk == Walk(path=(1, 2), bonus=99)
    assert walk.num_accepted == 2
    assert walk.moved_row() is None


def test_hedge_at_depth_one_ends_the_walk() -> None:
    """The bonus equals the second spine token, and still the hedge is terminal."""
    tree = DraftTree(spine=(10, 20), hedges=(Hedge(depth=1, rank=2, token=11),))
    walk = walk_tree(tree, [11, 55, 66, 20])
    assert walk == Walk(path=(3,), bonus=20)
    assert walk.moved_row() == (3, 1)


def test_hedge_after_a_prefix() -> None:
    tree = DraftTree(spine=(10, 20, 30), hedges=(Hedge(depth=2, rank=2, token=21),))
    walk = walk_tree(tree, [10, 21, 66, 77, 88])
    assert walk == Walk(path=(1, 4), bonus=88)
    assert walk.last_row == 4
    assert walk.moved_row() == (4, 2)


def test_total_reject_emits_the_first_pick() -> None:
    tree = DraftTree(spine=(10, 20), hedges=(Hedge(depth=1, rank=2, token=11),))
    walk = walk_tree(tree, [7, 1, 2, 3])
    assert walk == Walk(path=(), bonus=7)
    assert walk.last_row == 0


def test_wrong_number_of_picks_is_refused() -> None:
    for picks in ([1, 2], [1, 2, 3, 4]):
        with pytest.raises(TreeShapeError, match="picks out of step"):
            walk_tree(DraftTree(spine=(1, 2)), picks)
        with pytest.raises(TreeShapeError, match="picks out of step"):
            walk_chain([1, 2], picks)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.data())
def test_chain_walk_equals_the_tree_walk_of_a_spine(drafts: list[int], data: st.DataObject) -> None:
    picks = data.draw(
        st.lists(st.integers(0, 2), min_size=len(drafts) + 1, max_size=len(drafts) + 1)
    )
    assert walk_chain(drafts, picks) == walk_tree(DraftTree(spine=tuple(drafts)), picks)


def test_chain_of_no_drafts_emits_the_pick() -> None:
    assert walk_chain([], [5]) == Walk(path=(), bonus=5)


@given(SHAPES, st.randoms(use_true_random=False))
def test_emitted_tokens_are_those_of_plain_greedy_decoding(counts: list[int], noise) -> None:  # type: ignore[no-untyped-def]
    """Whatever is drafted, path tokens plus bonus are a prefix of the greedy continuation."""
    shape = TreeShape(counts=tuple(counts))
    vocab = 6
    table: dict[tuple[int, ...], int] = {}

    def greedy(prefix: tuple[int, ...]) -> int:
        return table.setdefault(prefix, noise.randrange(vocab))

    topk = [noise.sample(range(vocab), count) for count in counts]
    tree = DraftTree.from_topk(shape, topk)
    assert tree.shape == shape
    tokens, parents = tree.tokens(root=3), shape.parents()
    prefixes: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        prefixes.append((*(prefixes[parent] if parent >= 0 else ()), token))
    walk = walk_tree(tree, [greedy(prefix) for prefix in prefixes])
    emitted = [tokens[row] for row in walk.path] + [walk.bonus]
    context: tuple[int, ...] = (3,)
    for token in emitted:
        assert token == greedy(context)
        context = (*context, token)
    assert [parents[row] for row in walk.path] == [0, *walk.path[:-1]][: len(walk.path)]


@pytest.mark.parametrize(
    ("spine", "hedges"),
    [
        ((10, 20), (Hedge(depth=1, rank=2, token=10),)),
        ((10, 20), (Hedge(depth=1, rank=3, token=11),)),
        ((10, 20), (Hedge(depth=3, rank=2, token=11),)),
        ((10, 20), (Hedge(depth=2, rank=2, token=21), Hedge(depth=1, rank=2, token=11))),
        ((10,), (Hedge(depth=1, rank=2, token=1), Hedge(depth=1, rank=3, token=1))),
        ((), ()),
    ],
)
def test_ambiguous_trees_are_refused(spine: tuple[int, ...], hedges: tuple[Hedge, ...]) -> None:
    with pytest.raises(TreeShapeError):
        DraftTree(spine=spine, hedges=hedges)


def test_too_few_candidates_are_refused() -> None:
    with pytest.raises(TreeShapeError, match="too few candidates"):
        DraftTree.from_topk(TreeShape(counts=(1, 2)), [[1, 2], [3]])
    with pytest.raises(TreeShapeError, match="too few candidates"):
        DraftTree.from_topk(TreeShape(counts=(1, 2)), [[1, 2]])


def test_tokens_by_row_start_at_the_root() -> None:
    tree = DraftTree.from_topk(TreeShape(counts=(2, 1)), [[10, 11, 12], [20]])
    assert tree.tokens(root=5) == (5, 10, 20, 11)
