"""The policy benchmarks run, print one JSON object, and draw what they are asked to."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from phalanx.proposers.policy.replay_suite import read_fixture, run_priors

ROOT = Path(__file__).resolve().parents[3]
FIXTURES = Path(__file__).parent / "fixtures"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def small_fixture(tmp_path: Path) -> Path:
    document = json.loads((FIXTURES / "glm53_flash_dflash2_gb10x3.json").read_text())
    document["traces"] = [{"name": "tiny", "k_logged": 2, "counts": [9, 6, 5]}]
    path = tmp_path / "small.json"
    path.write_text(json.dumps(document))
    return path


def test_replay_prints_tokens_per_ms_by_scenario_and_mechanism(
    small_fixture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load("bench_replay").main(["--fixture", str(small_fixture), "--seeds", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    (row,) = json.loads(lines[0]).values()
    assert {"controller", "gate", "ladder", "rung", "best-fixed"} <= set(row)
    assert all(value > 0.0 for value in row.values())


def test_replay_draws_a_figure(small_fixture: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    bench = load("bench_replay")
    drawn = []
    for name in ("one.svg", "two.svg"):
        out = tmp_path / "new" / name
        assert (
            bench.main(["--fixture", str(small_fixture), "--seeds", "1", "--plot", str(out)]) == 0
        )
        drawn.append(out.read_text())
    assert "<svg" in drawn[0] and drawn[0] == drawn[1]


def test_a_figure_of_an_unknown_ending_is_refused(small_fixture: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(SystemExit, match="endings"):
        load("bench_replay").main(
            ["--fixture", str(small_fixture), "--seeds", "1", "--plot", str(tmp_path / "a.txt")]
        )


@pytest.mark.parametrize("content", [None, "not json", "[1, 2]"])
def test_replay_names_a_fixture_it_cannot_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    path = tmp_path / "broken.json"
    if content is not None:
        path.write_text(content)
    assert load("bench_replay").main(["--fixture", str(path)]) == 2
    assert "broken.json" in capsys.readouterr().err


def test_the_cost_surface_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    document = json.loads((FIXTURES / "qwen38_27b_mtp_gb10.json").read_text())
    case = read_fixture(document)[0]
    assert case.table is not None
    for ending in ("svg", "png"):
        out = tmp_path / f"surface.{ending}"
        load("plots").plot_cost_surface(case.table, run_priors(case.trace), out)
        assert out.stat().st_size > 5000


def test_policy_prints_one_decision_per_width(capsys: pytest.CaptureFixture[str]) -> None:
    assert load("bench_policy").main(["--steps", "3", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    found = json.loads(lines[0])
    assert set(found["decision_us"]) == {"1", "8", "64"}
    assert all(value > 0.0 for value in found["decision_us"].values())
    assert set(found["parts_us"]["64"]) == {"controller", "dcut", "order", "key"}
