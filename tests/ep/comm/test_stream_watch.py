"""Deadlines of enqueued work, with marks that a test sets by hand."""

from __future__ import annotations

import threading

import torch

from phalanx.ep.comm.stream_watch import StreamWatch, mark_stream

CPU = torch.device("cpu")
WAIT_S = 20


class HandMark:
    """A mark that is passed when the test says so."""

    def __init__(self) -> None:
        self.is_passed = False
        self.asked = threading.Event()

    def query(self) -> bool:
        self.asked.set()
        return self.is_passed


class Stuck:
    """Records what the watch reports."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, float]] = []
        self.came = threading.Event()

    def __call__(self, operation: str, age_s: float) -> None:
        self.reports.append((operation, age_s))
        self.came.set()


def test_an_operation_that_never_ends_is_reported_once_by_name() -> None:
    stuck = Stuck()
    marks = [HandMark(), HandMark()]
    marks[0].is_passed = True
    queue = iter(marks)
    watch = StreamWatch(CPU, deadline_s=0.2, on_stuck=stuck, mark=lambda device: next(queue))
    watch.enqueued("all_reduce")
    watch.enqueued("broadcast")
    assert stuck.came.wait(WAIT_S)
    watch.close()
    assert [operation for operation, _ in stuck.reports] == ["broadcast"]
    assert stuck.reports[0][1] > 0.2


def test_operations_that_end_are_not_reported() -> None:
    stuck, mark = Stuck(), HandMark()
    watch = StreamWatch(CPU, deadline_s=60, on_stuck=stuck, mark=lambda device: mark)
    watch.enqueued("all_reduce")
    assert mark.asked.wait(WAIT_S)
    mark.is_passed = True
    watch.close()
    watch.close()
    assert stuck.reports == []


def test_there_is_nothing_to_watch_on_a_cpu() -> None:
    assert mark_stream(CPU) is None
    watch = StreamWatch(CPU, deadline_s=0.01, on_stuck=Stuck())
    watch.enqueued("all_reduce")
    assert watch._thread is None
    watch.close()
