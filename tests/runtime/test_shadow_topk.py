"""The shadow top-k join: what a tree would have caught."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.runtime.shadow_topk import (
    Coverage,
    draft_line,
    join,
    parse_shadow_topk,
    report,
    verify_line,
)


def _proposal(base: int, topk: list[list[int]], *, seq: int = 7) -> list[str]:
    return [
        draft_line(
            seq=seq, base=base, depth=depth, ids=ids, probs=[0.5 / (i + 1) for i in range(len(ids))]
        )
        for depth, ids in enumerate(topk, start=1)
    ]


@pytest.mark.parametrize(
    ("raw", "topk"), [(None, 0), ("0", 0), ("4", 4), ("8", 8), ("99", 8), ("x", 0), ("-1", 0)]
)
def test_flag_is_capped_and_zero_is_off(raw: str | None, topk: int) -> None:
    assert parse_shadow_topk(raw) == topk


def test_lines_read_as_documented() -> None:
    assert (
        draft_line(seq=7, base=120, depth=1, ids=[5, 9], probs=[0.71, 0.11])
        == "shadow-draft seq=7 base=120 depth=1 ids=5,9 probs=0.710000,0.110000"
    )
    assert verify_line(seq=7, base=120, picks=[5, 8]) == "shadow-verify seq=7 base=120 picks=5,8"


def test_coverage_is_conditional_on_a_correct_chain() -> None:
    lines = [
        *_proposal(10, [[5, 9, 2], [7, 3, 1]]),
        verify_line(seq=7, base=10, picks=[5, 3, 99]),
        *_proposal(12, [[5, 9, 2], [7, 3, 1]]),
        verify_line(seq=7, base=12, picks=[9, 7, 99]),
        *_proposal(13, [[5, 9, 2], [7, 3, 1]]),
        verify_line(seq=7, base=13, picks=[5, 7, 42]),
        *_proposal(16, [[5, 9, 2], [7, 3, 1]]),
        verify_line(seq=7, base=16, picks=[88, 7, 99]),
    ]
    coverage = join(lines)
    first, second = coverage.depths
    assert (first.reached, first.within[:3]) == (4, (2, 3, 3))
    assert (second.reached, second.within[:3]) == (2, (1, 2, 2)), "only where draft 1 was right"
    assert (first.rate(1), first.rate(2), first.rate(8)) == (0.5, 0.75, 0.75)
    assert first.rescue(2) == 0.5
    assert second.rescue(2) == 1.0
    assert (coverage.joined, coverage.lone_verifies, coverage.lone_proposals) == (4, 0, 0)


def test_expected_tokens_of_shapes() -> None:
    lines = [
        *_proposal(10, [[5, 9], [7, 3]]),
        verify_line(seq=7, base=10, picks=[5, 3, 99]),
        *_proposal(12, [[5, 9], [7, 3]]),
        verify_line(seq=7, base=12, picks=[9, 7, 99]),
    ]
    coverage = join(lines)
    assert coverage.expected_tokens([1]) == pytest.approx(1.5)
    assert coverage.expected_tokens([1, 1]) == pytest.approx(1.5)
    assert coverage.expected_tokens([2, 1]) == pytest.approx(2.0)
    assert coverage.expected_tokens([2, 2]) == pytest.approx(2.5)
    assert coverage.expected_tokens([]) == 1.0


def test_bonus_pick_counts_for_a_proposal_deeper_than_its_verify() -> None:
    lines = [*_proposal(10, [[5], [7]]), verify_line(seq=7, base=10, picks=[5, 7])]
    assert [depth.reached for depth in join(lines).depths] == [1, 1]


def test_sequences_and_bases_do_not_mix() -> None:
    lines = [
        *_proposal(10, [[5]], seq=1),
        *_proposal(10, [[6]], seq=2),
        verify_line(seq=2, base=10, picks=[6, 0]),
        verify_line(seq=1, base=11, picks=[5, 0]),
    ]
    coverage = join(lines)
    assert (coverage.joined, coverage.lone_verifies, coverage.lone_proposals) == (1, 1, 1)
    assert coverage.depths[0].rate(1) == 1.0


def test_later_proposal_of_the_same_place_replaces_the_earlier() -> None:
    lines = [
        *_proposal(10, [[5], [6]]),
        *_proposal(10, [[9]]),
        verify_line(seq=7, base=10, picks=[9, 6, 0]),
    ]
    coverage = join(lines)
    assert [(d.reached, d.rate(1)) for d in coverage.depths] == [(1, 1.0)]
    assert coverage.lone_proposals == 1


def test_tags_are_found_behind_log_prefixes() -> None:
    lines = [
        f"12:00:01 [rank 0 step 9] INFO {line}\n"
        for line in (*_proposal(10, [[5]]), verify_line(seq=7, base=10, picks=[5, 1]))
    ]
    assert join(["noise", *lines]).joined == 1


@pytest.mark.parametrize(
    "line",
    [
        "shadow-draft seq=7 base=120 depth=1 ids=5,9,",
        "shadow-draft seq=7 base=120 depth=0 ids=5 probs=0.5",
        "shadow-draft seq=7 base=120 depth=999 ids=5 probs=0.5",
        "shadow-verify seq=7 base=x picks=5",
        "shadow-verify seq=7 base=1 picks=5,8x",
        "shadow-verify seq=7 base=1 picks=",
        "shadow-verify seq=7 base=" + "9" * 5000 + " picks=5",
    ],
)
def test_unreadable_lines_are_counted_not_guessed(line: str) -> None:
    coverage = join([line])
    assert (coverage.malformed, coverage.joined, coverage.depths) == (1, 0, ())


def test_empty_log() -> None:
    assert join([]) == Coverage(depths=(), joined=0, lone_verifies=0, lone_proposals=0, malformed=0)


def test_report_has_one_row_per_depth_and_the_counts() -> None:
    lines = [*_proposal(10, [[5, 9], [7, 3]]), verify_line(seq=7, base=10, picks=[5, 3, 99])]
    text = report(join([*lines, "shadow-verify cut"]), topk=2).splitlines()
    assert text[0].split() == ["depth", "reached", "top-1", "top-2", "rescued"]
    assert text[1].split() == ["1", "1", "1.000", "1.000", "0.000"]
    assert text[2].split() == ["2", "1", "0.000", "1.000", "1.000"]
    assert "joined 1 verifies" in text[3] and "unreadable lines 1" in text[3]


@given(st.lists(st.text(max_size=40) | st.sampled_from(["shadow-draft ", "shadow-verify "])))
def test_any_log_joins(lines: list[str]) -> None:
    coverage = join(lines)
    assert coverage.joined == 0
    assert report(coverage)


@given(
    st.lists(
        st.tuples(
            st.lists(
                st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True),
                min_size=1,
                max_size=4,
            ),
            st.lists(st.integers(0, 5), min_size=1, max_size=5),
        ),
        max_size=10,
    )
)
def test_coverage_rises_with_rank_and_reach_falls_with_depth(
    verifies: list[tuple[list[list[int]], list[int]]],
) -> None:
    lines: list[str] = []
    for base, (topk, picks) in enumerate(verifies):
        lines += [*_proposal(base, topk), verify_line(seq=7, base=base, picks=picks)]
    coverage = join(lines)
    assert coverage.joined == len(verifies)
    reached = [depth.reached for depth in coverage.depths]
    assert reached == sorted(reached, reverse=True)
    for depth in coverage.depths:
        assert list(depth.within) == sorted(depth.within)
        assert depth.within[-1] <= depth.reached
    for below, above in zip(coverage.depths, coverage.depths[1:], strict=False):
        assert above.reached <= below.within[0]
