"""Host lists: what SLURM writes becomes host names, and nothing else does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.launch.hostlist import HostListError, expand


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("login", ["login"]),
        ("node[01-04,7]", ["node01", "node02", "node03", "node04", "node7"]),
        ("a,b[2],c", ["a", "b2", "c"]),
        ("r[1-2]n[08-09]", ["r1n08", "r1n09", "r2n08", "r2n09"]),
        ("gpu[9-11].site.org", ["gpu9.site.org", "gpu10.site.org", "gpu11.site.org"]),
        ("x[099-101]", ["x099", "x100", "x101"]),
    ],
)
def test_a_host_list_expands_in_order(text: str, hosts: list[str]) -> None:
    assert expand(text) == hosts


@pytest.mark.parametrize(
    "text", ["", "a[1", "a]1[", "a[1[2]]", "a[]", "a[3-1]", "a[x]", "a,,b", "a b", "a[0-999999999]"]
)
def test_an_unreadable_host_list_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(HostListError, match="host list cannot be read"):
        expand(text)


@given(st.text(alphabet="ab[]0123456789,- ", max_size=30))
def test_any_text_gives_hosts_or_one_kind_of_error(text: str) -> None:
    try:
        hosts = expand(text)
    except HostListError:
        return
    assert hosts
    assert all(host and "[" not in host and "," not in host for host in hosts)


@given(st.integers(0, 500), st.integers(0, 60), st.integers(1, 4))
def test_a_range_has_every_number_once_and_keeps_its_width(low: int, more: int, width: int) -> None:
    text = f"n[{low:0{width}d}-{low + more}]"
    hosts = expand(text)
    assert [int(host[1:]) for host in hosts] == list(range(low, low + more + 1))
    assert all(len(host) - 1 >= width for host in hosts)
