"""Snapshots: what a reader of the engine sees."""

import dataclasses
import math
import threading

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.proposers.policy.policy import Decision, StepOutcome, StreamOutcome
from phalanx.runtime.snapshot import MtpMode, Snapshot, SnapshotCell, SpecPicture, stats_lines
from phalanx.runtime.spec_stats import SpecStats


def _step(emitted: int, wall_s: float) -> StepOutcome:
    stream = StreamOutcome(stream_id=0, num_drafts=0, num_accepted=0, num_emitted=emitted)
    return StepOutcome(depth=0, wall_s=wall_s, streams=(stream,))


def test_snapshot_cannot_be_changed() -> None:
    snapshot = Snapshot(active_seqs=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        snapshot.active_seqs = 4  # type: ignore[misc]


def test_cell_is_empty_until_the_first_tick_and_then_holds_the_latest() -> None:
    cell = SnapshotCell()
    assert cell.read() is None
    first, second = Snapshot(steps_total=1), Snapshot(steps_total=2)
    cell.publish(first)
    cell.publish(second)
    assert cell.read() is second
    assert SnapshotCell().read() is None


def test_readers_on_another_thread_see_whole_pictures() -> None:
    cell = SnapshotCell()
    cell.publish(Snapshot(kv_blocks_total=0, kv_blocks_free=0))
    torn: list[Snapshot] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen = cell.read()
            if seen is not None and seen.kv_blocks_used != 0:
                torn.append(seen)

    reader = threading.Thread(target=read)
    reader.start()
    for tick in range(3000):
        cell.publish(Snapshot(kv_blocks_total=tick, kv_blocks_free=tick))
    stop.set()
    reader.join()
    assert torn == []


@pytest.mark.parametrize(
    ("decision", "mode"),
    [
        (None, MtpMode.MTP),
        (Decision(depth=2, reason="best"), MtpMode.MTP),
        (Decision(depth=0, reason="best"), MtpMode.SERIAL),
        (Decision(depth=0, reason="cost probe", probing=True), MtpMode.PROBING),
        (Decision(depth=3, reason="cost probe", probing=True), MtpMode.PROBING),
    ],
)
def test_mode_of_the_last_decision(decision: Decision | None, mode: MtpMode) -> None:
    picture = SpecPicture(armed=True)
    if decision is not None:
        picture.note_decision(decision)
    assert picture.mode is mode
    assert picture.last is decision


def test_without_gate_or_controller_the_mode_is_off() -> None:
    picture = SpecPicture(armed=False)
    picture.note_decision(Decision(depth=3, reason="fixed depth"))
    assert picture.mode is MtpMode.OFF


def test_delivered_rate_is_averaged_by_step() -> None:
    picture = SpecPicture(armed=True)
    assert picture.delivered_tps == 0.0
    picture.note_step(_step(2, 0.02))
    assert picture.delivered_tps == pytest.approx(100.0)
    picture.note_step(_step(4, 0.02))
    assert picture.delivered_tps == pytest.approx(0.7 * 100 + 0.3 * 200)


@given(st.lists(st.tuples(st.integers(-(1 << 70), 1 << 70), st.floats()), max_size=40))
def test_odd_steps_never_poison_the_rate(steps: list[tuple[int, float]]) -> None:
    picture = SpecPicture(armed=True)
    for emitted, wall_s in steps:
        picture.note_step(_step(emitted, wall_s))
        assert picture.delivered_tps >= 0.0
        assert math.isfinite(picture.delivered_tps)


def test_pane_is_empty_before_the_first_snapshot() -> None:
    assert stats_lines(None) == ()


def test_pane_shows_dashes_for_what_was_not_measured() -> None:
    assert stats_lines(Snapshot()) == (
        "active 0 · prefill 0 · swapped 0 · queue 0",
        "KV -",
        "SSM slots -",
        "MTP gate off",
        "drafts - · -",
        "delivered - tok/s",
    )


def test_pane_of_a_running_engine() -> None:
    stats = SpecStats()
    for accepted in (3, 3, 3, 0):
        stats.record_verify([accepted == 3] * 3, accepted=accepted, seq_len=1)
    lines = stats_lines(
        Snapshot(
            active_seqs=2,
            prefilling_seqs=1,
            swapped_seqs=1,
            pending_len=5,
            kv_blocks_free=30,
            kv_blocks_total=100,
            ssm_slots_used=2,
            ssm_slots_total=8,
            mtp_mode=MtpMode.MTP,
            delivered_tps=51.26,
            decision_depth=3,
            decision_reason="ladder",
            spec=stats.totals(),
        )
    )
    assert lines == (
        "active 2 · prefill 1 · swapped 1 · queue 5",
        "KV 70/100",
        "SSM slots 2/8",
        "MTP gate speculative",
        "drafts 3 · ladder",
        "delivered 51.3 tok/s",
        "accept k=4 75%",
    )


def test_mode_labels() -> None:
    assert [mode.value for mode in MtpMode] == ["speculative", "serial", "probing", "off"]


def test_snapshot_encodes_for_the_http_view() -> None:
    snapshot = Snapshot(active_seqs=2, mtp_mode=MtpMode.PROBING, decision_reason="cost probe")
    decoded = msgspec.json.decode(msgspec.json.encode(snapshot))
    assert decoded["active_seqs"] == 2
    assert decoded["mtp_mode"] == "probing"
    assert decoded["decision_depth"] is None
    assert msgspec.json.decode(msgspec.json.encode(snapshot), type=Snapshot) == snapshot
