"""Doctor: every check says what it found, every trouble says how to mend it, nothing raises."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from phalanx.launch import doctor_checks
from phalanx.launch.cli import main
from phalanx.launch.doctor_checks import (
    Finding,
    check_cores,
    check_flags,
    check_native,
    check_packages,
    check_port,
    check_shared_memory,
    fail,
    megabytes,
    ok,
    warn,
    worst,
)
from phalanx.runtime.flags import read_flags


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[Finding]]:
    capsys.readouterr()
    status = main(["doctor", "--json", *arguments])
    printed = json.loads(capsys.readouterr().out)
    return status, [Finding(**row) for row in printed["findings"]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PHALANX_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_a_machine_that_runs_the_tests_can_run_tiny(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, findings = doctor(capsys, "--model", "tiny", "--ranks", "2", "--threads", "1")
    assert status == 0, [f for f in findings if f.status == "fail"]
    names = [finding.name for finding in findings]
    assert {"python", "torch", "rank 0", "rank 1", "memory", "port", "flags"} <= set(names)


def test_every_trouble_comes_with_its_mend(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHALANX_NO_NATIVE_KERNELS", "0")
    monkeypatch.setenv("PHALANX_UNHEARD_OF", "1")
    status, findings = doctor(capsys, "--model", "/nowhere", "--ranks", "99", "--device", "cuda")
    assert status == 1
    troubles = [finding for finding in findings if finding.status != "ok"]
    assert {"native kernels", "flags", "cores", "gpus", "model"} <= {f.name for f in troubles}
    assert all(finding.mend for finding in troubles)


def test_more_ranks_than_experts_is_found(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, findings = doctor(capsys, "--model", "tiny", "--ranks", "17", "--num-kv-blocks", "200")
    assert status == 1
    assert any("more ranks than experts" in finding.detail for finding in findings)


def test_the_demo_is_not_downloaded_by_a_look(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, findings = doctor(capsys, "--model", "demo")
    assert any("the first run prepares it" in finding.detail for finding in findings)
    assert not list(here.iterdir())


def test_lines_for_a_person(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--model", "/nowhere"])
    out = capsys.readouterr().out
    assert "FAIL  model" in out and "  -> " in out


def test_a_taken_port_is_seen() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        finding = check_port("127.0.0.1", taken.getsockname()[1])
    assert finding.status == "warn" and "--master-port" in finding.mend
    assert check_port("127.0.0.1", 0).status == "ok"


def test_shared_memory_missing_or_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_shared_memory(tmp_path / "none").status == "warn"
    assert check_shared_memory(tmp_path).status == "ok"
    monkeypatch.setattr(
        doctor_checks.shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 10)
    )
    assert "--shm-size" in check_shared_memory(tmp_path).mend


def test_old_and_missing_packages_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        doctor_checks.importlib.metadata,
        "requires",
        lambda name: ["torch>=999", "no-such-package>=1", "numpy>=1.0", 'gguf>=1; extra == "demo"'],
    )
    old, missing, good = check_packages()
    assert (old.status, missing.status, good.status) == ("fail", "fail", "ok")
    assert "needs 999" in old.detail and "no-such-package" in missing.mend


def test_switched_off_kernels_are_a_warning() -> None:
    assert check_native(read_flags({"PHALANX_NO_NATIVE_KERNELS": "1"})).status == "warn"


def test_flags_that_are_set_are_listed() -> None:
    [finding] = check_flags(read_flags({"PHALANX_STARTUP_PARITY": "warn"}))
    assert finding.status == "ok" and "PHALANX_STARTUP_PARITY" in finding.detail


def test_threads_beyond_the_cores_are_a_warning() -> None:
    assert check_cores(ranks=4096, threads=1).status == "warn"
    assert check_cores(ranks=1, threads=1).status == "ok"


def test_the_worst_finding_decides() -> None:
    assert worst([ok("a", "b")]) == "ok"
    assert worst([ok("a", "b"), warn("a", "b", mend="c")]) == "warn"
    assert worst([warn("a", "b", mend="c"), fail("a", "b", mend="c")]) == "fail"


def test_byte_counts_in_words() -> None:
    assert [megabytes(n) for n in (12, 3400, 5.6e6, 7.8e9)] == [
        "12 bytes",
        "3.4 kB",
        "5.6 MB",
        "7.8 GB",
    ]
