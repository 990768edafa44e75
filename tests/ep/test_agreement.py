"""Start-up agreement: alike ranks agree on the minimum, and any difference is named for all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.ep.agreement import Agreed, Agreement, agree, compare
from phalanx.ep.faults import AgreementFailed, EPFault, RendezvousFailed

SHEET = Agreement(
    rank=0,
    world_size=1,
    local_rank=0,
    host="here",
    pid=100,
    machine="m0",
    address="127.0.0.1",
    protocol=1,
    build="0.1.0+aa",
    flags={"PHALANX_A": "off"},
    config_digest=7,
    config={"model.dtype": "bfloat16"},
    free_memory_bytes=1000,
    max_kv_blocks=64,
)


class MemoryStore:
    """A store in one process; `get` fails like torch's when the key never comes."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def set(self, key: str, value: bytes) -> None:
        with self._lock:
            self._values[key] = value

    def get(self, key: str) -> bytes:
        with self._lock:
            if key not in self._values:
                raise RuntimeError(f"wait timeout for {key}")
            return self._values[key]

    def add(self, key: str, value: int) -> int:
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + value
            return self._counts[key]

    def check(self, keys: list[str]) -> bool:
        with self._lock:
            return all(key in self._values for key in keys)


def sheet(rank: int, world_size: int, **changes: Any) -> Agreement:
    base = {"rank": rank, "world_size": world_size, "local_rank": rank, "pid": 100 + rank}
    return msgspec.structs.replace(SHEET, **(base | changes))


def together(sheets: list[Agreement], *, deadline_s: float = 30) -> list[Agreed | EPFault]:
    """What `agree` gave, or raised, for each sheet, all at once over one store."""
    store = MemoryStore()

    def one(mine: Agreement) -> Agreed | EPFault:
        try:
            return agree(store, mine, deadline_s=deadline_s)
        except EPFault as fault:
            return fault

    with ThreadPoolExecutor(len(sheets)) as pool:
        return list(pool.map(one, sheets))


def failures(results: list[Agreed | EPFault], kind: type[EPFault]) -> list[str]:
    assert all(isinstance(result, kind) for result in results), results
    return [result.report.cause for result in results if isinstance(result, EPFault)]


def test_alike_ranks_agree_on_the_smallest_memory_and_kv_blocks() -> None:
    results = together(
        [
            sheet(0, 3, max_kv_blocks=90, free_memory_bytes=5),
            sheet(1, 3, max_kv_blocks=70, free_memory_bytes=9),
            sheet(2, 3, max_kv_blocks=80, free_memory_bytes=7),
        ]
    )
    for agreed in results:
        assert isinstance(agreed, Agreed)
        assert (agreed.kv_blocks, agreed.free_memory_bytes) == (70, 5)
        assert [other.pid for other in agreed.sheets] == [100, 101, 102]
        assert agreed.on_one_machine


def test_ranks_of_two_machines_are_not_on_one_and_may_share_local_ranks() -> None:
    agreed = compare([sheet(0, 2, local_rank=0), sheet(1, 2, local_rank=0, machine="m1")])
    assert not agreed.on_one_machine


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"build": "0.1.0+bb"}, "build (ranks 0, 2: 0.1.0+aa; rank 1: 0.1.0+bb)"),
        ({"protocol": 2}, "protocol version (ranks 0, 2: 1; rank 1: 2)"),
        ({"flags": {"PHALANX_A": "on"}}, "PHALANX_A (ranks 0, 2: off; rank 1: on)"),
        ({"flags": {}}, "PHALANX_A (ranks 0, 2: off; rank 1: (none))"),
        (
            {"config": {"model.dtype": "float32"}},
            "model.dtype (ranks 0, 2: bfloat16; rank 1: float32)",
        ),
        (
            {"config": {"model.dtype": "bfloat16", "new": "1"}},
            "new (ranks 0, 2: (none); rank 1: 1)",
        ),
        (
            {"config_digest": 8},
            "config digest (ranks 0, 2: 0000000000000007; rank 1: 0000000000000008)",
        ),
    ],
)
def test_a_difference_fails_every_rank_with_the_setting_and_each_value(
    change: dict[str, Any], shown: str
) -> None:
    causes = failures(together([sheet(0, 3), sheet(1, 3, **change), sheet(2, 3)]), AgreementFailed)
    assert len(set(causes)) == 1
    assert shown in causes[0]
    assert "\n" not in causes[0]


def test_every_fault_says_which_rank_it_comes_from() -> None:
    results = together([sheet(0, 2), sheet(1, 2, build="x")])
    for rank, fault in enumerate(results):
        assert isinstance(fault, AgreementFailed)
        assert str(fault).startswith(
            f"AgreementFailed: rank {rank} of 2 (host here, pid {100 + rank})"
        )
        assert fault.report.phase == "agreement"


def test_lenient_parity_logs_settings_once_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    lenient = {"parity": "warn"}
    other = {"flags": {"PHALANX_A": "on"}, "config_digest": 9}
    results = together([sheet(0, 2, **lenient), sheet(1, 2, **lenient, **other)])
    for agreed in results:
        assert isinstance(agreed, Agreed)
        assert agreed.tolerated == ("PHALANX_A (rank 0: off; rank 1: on)",)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "PHALANX_A" in caplog.text


@pytest.mark.parametrize(
    ("parities", "change"),
    [
        (("warn", "warn"), {"build": "0.1.0+bb"}),
        (("warn", "warn"), {"local_rank": 0}),
        (("warn", "fail"), {"flags": {"PHALANX_A": "on"}}),
    ],
)
def test_lenient_parity_needs_every_rank_and_never_covers_builds_or_devices(
    parities: tuple[str, str], change: dict[str, Any]
) -> None:
    sheets = [sheet(0, 2, parity=parities[0]), sheet(1, 2, parity=parities[1], **change)]
    with pytest.raises(AgreementFailed, match="not started alike"):
        compare(sheets)


def test_many_differences_are_counted_not_all_printed() -> None:
    changed = {f"setting {number}": "b" for number in range(40)}
    causes = failures(
        together([sheet(0, 2, config=dict.fromkeys(changed, "a")), sheet(1, 2, config=changed)]),
        AgreementFailed,
    )
    assert "and 34 more" in causes[0]


def test_two_processes_that_are_one_rank_are_both_named_and_the_others_stop() -> None:
    results = together([sheet(0, 3), sheet(1, 3, pid=7), sheet(1, 3, pid=8)])
    causes = failures(results, AgreementFailed)
    assert all("two processes are rank 1" in cause for cause in causes)
    assert all("pid 7" in cause and "pid 8" in cause for cause in causes)


def test_different_world_sizes_fail_at_once_and_not_at_the_deadline() -> None:
    results = together([sheet(0, 2), sheet(1, 3)], deadline_s=600)
    causes = failures(results, AgreementFailed)
    assert all("world_size differs" in cause for cause in causes)


def test_a_local_rank_used_twice_on_a_machine_is_refused() -> None:
    with pytest.raises(AgreementFailed, match="ranks 0 and 1 on host here are both local rank 0"):
        compare([sheet(0, 2), sheet(1, 2, local_rank=0)])


def test_ranks_that_never_come_are_named_at_the_deadline() -> None:
    results = together([sheet(0, 4), sheet(2, 4)], deadline_s=0.2)
    causes = failures(results, RendezvousFailed)
    assert all("ranks that never came: [1, 3]" in cause for cause in causes)


def test_a_sheet_of_another_build_that_cannot_be_read_is_named() -> None:
    store = MemoryStore()
    store.set("agree/sheet/1", b"\x93nonsense")
    with pytest.raises(AgreementFailed, match="rank 1's sheet cannot be read"):
        agree(store, sheet(0, 2), deadline_s=5)


def test_a_broken_store_is_a_rendezvous_fault() -> None:
    class Broken(MemoryStore):
        def check(self, keys: list[str]) -> bool:
            raise RuntimeError("Connection reset by peer")

    with pytest.raises(RendezvousFailed, match="Connection reset by peer") as caught:
        agree(Broken(), sheet(0, 2), deadline_s=5)
    assert caught.value.report.rank == 0


def test_rank_0_waits_until_all_have_read_because_it_may_hold_the_store() -> None:
    order: list[str] = []

    class Slow(MemoryStore):
        def get(self, key: str) -> bytes:
            if threading.current_thread().name == "slow" and key == "agree/sheet/0":
                threading.Event().wait(0.3)
            return super().get(key)

    store = Slow()

    def one(mine: Agreement) -> Callable[[], None]:
        def run() -> None:
            agree(store, mine, deadline_s=30)
            order.append(f"rank {mine.rank}")

        return run

    threads = [
        threading.Thread(target=one(sheet(0, 2)), name="fast"),
        threading.Thread(target=one(sheet(1, 2)), name="slow"),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert sorted(order) == ["rank 0", "rank 1"]
    assert store.add("agree/read", 0) == 2


VALUES = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"), max_size=3)


@settings(max_examples=60, deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=4), st.lists(VALUES, min_size=4, max_size=4))
def test_compare_fails_exactly_when_some_table_differs(
    flags: list[dict[str, str]], config: list[dict[str, str]]
) -> None:
    sheets = [
        sheet(rank, len(flags), flags=flags[rank], config=config[rank])
        for rank in range(len(flags))
    ]
    alike = all(s.flags == flags[0] and s.config == config[0] for s in sheets)
    try:
        compare(sheets)
    except AgreementFailed as fault:
        assert not alike
        assert "the ranks were not started alike" in str(fault)
    else:
        assert alike
