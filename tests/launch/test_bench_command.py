"""phalanx bench: decode on a real engine; scripts are started with their own options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phalanx.launch.cli import main
from phalanx.launch.commands import bench_command


@pytest.fixture(autouse=True)
def cache_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_CACHE_DIR", str(tmp_path / "cache"))


def test_decode_prints_the_figures_by_category(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(
        '{"id": "a", "category": "code", "prompt": "x = 1"}\n'
        '{"id": "b", "category": "chat", "prompt": "hi"}\n'
    )
    arguments = ["--model", "tiny", "--threads", "1", "--max-tokens", "4", "--json"]
    assert main(["bench", "decode", "--prompts-file", str(prompts), *arguments]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {"plain_tok_s", "mtp_tok_s", "ratio", "acceptance_length", "peers"} <= set(result)
    assert set(result["by_category"]) == {"code", "chat"}
    assert len(result["by_category"]["code"]["accepted_per_position"]) == 3
    assert result["texts_equal"] == result["prompts"] == 2
    assert result["machine"]["cores"] >= 1


def test_scripts_get_their_own_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bench_kernels.py").write_text("import sys; print(sys.argv[1:]); sys.exit(3)")
    monkeypatch.setattr(bench_command, "BENCHMARKS", tmp_path)
    assert main(["bench", "kernels", "--threads", "2", "--help"]) == 3
    assert "['--threads', '2', '--help']" in capfd.readouterr().out


def test_a_missing_script_says_where_it_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_command, "BENCHMARKS", tmp_path)
    assert main(["bench", "policy"]) == 2
    assert "source checkout" in capsys.readouterr().err


@pytest.mark.parametrize("name", bench_command.SCRIPTS)
def test_every_named_script_is_there(name: str) -> None:
    assert (bench_command.BENCHMARKS / f"bench_{name}.py").is_file()
