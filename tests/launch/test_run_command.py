"""phalanx run on real ranks: one JSON object, and errors that stay with their prompt."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from phalanx.launch.cli import main

TIMEOUT_S = 150


def phalanx(*arguments: str, launcher: tuple[str, ...] = (), **more: str) -> Any:
    """Run the command in a process of its own, as a user does."""
    command = [sys.executable, *launcher, "-m", "phalanx.launch", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, check=False
    )


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The named models are prepared in a folder of this test."""
    monkeypatch.setenv("PHALANX_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> Any:
    """Run on one rank in this process; the object it printed."""
    capsys.readouterr()
    assert main(["run", "--model", "tiny", "--threads", "1", "--json", *arguments]) == status
    return json.loads(capsys.readouterr().out)


def test_json_has_every_figure(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_json(capsys, "--prompt-token-ids", "1,2,3", "--max-tokens", "6", "--ignore-eos")
    assert set(result) == {
        "model",
        "ranks",
        "outputs",
        "seconds",
        "tokens_per_second",
        "rounds",
        "commands",
        "spec",
        "lockstep",
        "weights_bytes_per_rank",
        "config",
    }
    [output] = result["outputs"]
    assert set(output) == {"text", "token_ids", "finish_reason", "prompt_tokens"}
    assert len(output["token_ids"]) == 6
    assert (output["finish_reason"], output["prompt_tokens"]) == ("length", 3)
    assert result["spec"]["method"] == "mtp" and result["spec"]["num_drafts"] == 3
    assert result["commands"]["FORWARD"] == result["rounds"]
    assert result["lockstep"]["mismatches"] == 0
    assert result["config"]["cache"]["num_kv_blocks"] > 0


def test_speculation_off_gives_the_same_tokens(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--prompt", "hello", "--max-tokens", "12", "--ignore-eos")
    with_drafts = run_json(capsys, *arguments)
    config = '{"method": "mtp", "num_speculative_tokens": 1}'
    one_draft = run_json(capsys, *arguments, "--speculative-config", config)
    without = run_json(capsys, *arguments, "--spec", "off")
    assert without["outputs"] == with_drafts["outputs"] == one_draft["outputs"]
    assert "MTP_PROPOSE" in with_drafts["commands"] and "MTP_PROPOSE" not in without["commands"]
    assert one_draft["spec"]["num_drafts"] == 1


def test_seeded_sampling_is_repeatable_and_needs_no_speculation(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (
        *("--prompt", "hello", "--max-tokens", "8", "--ignore-eos"),
        *("--temperature", "0.9", "--top-p", "0.9", "--top-k", "50", "--seed", "7"),
    )
    first = run_json(capsys, *arguments)
    second = run_json(capsys, *arguments, "--spec", "off")
    assert first["outputs"] == second["outputs"]


def test_one_bad_prompt_fails_alone(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = here / "p.jsonl"
    prompts.write_text(
        '{"prompt_token_ids": [1, 2], "max_tokens": 2, "ignore_eos": true}\n'
        '{"prompt_token_ids": [999999]}\n'
        '{"prompt_token_ids": []}\n'
        '{"prompt": "hi", "temperature": -1}\n'
        '{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "ignore_eos": true}\n'
    )
    result = run_json(capsys, "--prompts-file", str(prompts), status=1)
    reasons = [output["finish_reason"] for output in result["outputs"]]
    assert reasons[0] == "length" and reasons[4] == "length"
    assert "token id outside the vocabulary" in reasons[1]
    assert "empty prompt" in reasons[2]
    assert "temperature out of range" in reasons[3]


def test_text_goes_to_stdout_and_the_table_to_stderr(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", "--model", "tiny", "--threads", "1", "--max-tokens", "4", "--ignore-eos"]
    assert main([*arguments, "--prompt", "hello"]) == 0
    said = capsys.readouterr()
    assert "tokens/s" in said.err and "tokens/s" not in said.out
    assert "phalanx: tiny on 1 rank x 1 thread " in said.err
    assert said.out


def test_two_ranks_answer_as_one_does(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--prompt", "hello", "--max-tokens", "12", "--ignore-eos", "--dtype", "float32")
    alone = run_json(capsys, *arguments)
    done = phalanx("run", "--model", "tiny", "--ranks", "2", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    together = json.loads(done.stdout)
    assert together["ranks"] == 2
    assert together["outputs"] == alone["outputs"]
    assert together["lockstep"]["digest_checks"] >= sum(together["commands"].values()) - 1
    bytes_alone, bytes_each = alone["weights_bytes_per_rank"], together["weights_bytes_per_rank"]
    assert len(bytes_each) == 2 and max(bytes_each) < bytes_alone[0]


def test_drafter_on_rank_0_alone_gives_the_same_text(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--prompt", "hello", "--max-tokens", "8", "--ignore-eos", "--dtype", "float32")
    lockstep = run_json(capsys, *arguments)
    done = phalanx(
        *("run", "--model", "tiny", "--ranks", "2", "--json", *arguments),
        PHALANX_NO_MTP_EP_PROPOSE="1",
    )
    assert done.returncode == 0, done.stderr
    alone = json.loads(done.stdout)
    assert alone["outputs"] == lockstep["outputs"]
    assert "MTP_PROPOSE" not in alone["commands"]
    assert alone["spec"]["num_draft_tokens"] > 0


def test_torchrun_ranks_are_joined_not_spawned(here: Path) -> None:
    done = phalanx(
        *("run", "--model", "tiny", "--prompt-token-ids", "1,2,3", "--max-tokens", "4"),
        *("--ignore-eos", "--json"),
        launcher=("-m", "torch.distributed.run", "--nproc-per-node", "2"),
    )
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("{")]
    result = json.loads(line)
    assert result["ranks"] == 2 and len(result["outputs"][0]["token_ids"]) == 4


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("--model", "/nowhere"), "no config.json"),
        (("--ranks", "0"), "no ranks"),
        (("--ranks", "17", "--model", "tiny"), "more ranks than experts"),
        (("--model", "tiny", "--max-model-len", "99999"), "model limit"),
        (("--model", "tiny", "--num-kv-blocks", "1"), "KV pool smaller"),
        (("--model", "tiny", "--temperature", "-1"), "temperature out of range"),
        (("--model", "tiny", "--num-drafts", "99"), "draft count out of range"),
        (("--model", "tiny", "--threads", "-1"), "threads out of range"),
    ],
)
def test_mistakes_are_one_line_before_anything_starts(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], match: str
) -> None:
    assert main(["run", "--prompt", "x", *arguments]) == 2
    error = capsys.readouterr().err
    assert match in error and error.startswith("phalanx: ") and error.count("\n") == 1


def test_a_damaged_checkpoint_stops_before_ranks_are_started(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_json(capsys, "--prompt-token-ids", "1", "--max-tokens", "1")
    [weights] = (here / "cache").glob("tiny*/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-100])
    assert main(["run", "--model", str(weights.parent), "--prompt", "x", "--ranks", "2"]) == 2
    assert "damaged weight file" in capsys.readouterr().err


def test_ctrl_c_ends_every_rank_in_order(here: Path) -> None:
    arguments = ("--model", "tiny", "--ranks", "2", "--prompt", "hello", "--max-tokens", "2000")
    with subprocess.Popen(
        [sys.executable, "-m", "phalanx.launch", "run", *arguments, "--ignore-eos"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        if process.stdout is None:
            raise AssertionError("stdout was asked for as a pipe and is none")
        process.stdout.read(1)  # the first letter: both ranks are generating
        ranks = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert len(ranks) == 2
    _, alive = psutil.wait_procs(ranks, timeout=10)
    assert not alive


def test_ranks_started_by_hand_meet(here: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = [sys.executable, "-m", "phalanx.launch", "run", "--model", "tiny", "--world-size", "2"]
    common += ["--master-addr", "127.0.0.1", "--master-port", str(port), "--local-world-size", "2"]
    common += ["--prompt-token-ids", "1,2", "--max-tokens", "3", "--ignore-eos", "--json"]
    processes = [
        subprocess.Popen(
            [*common, "--rank", str(rank), "--local-rank", str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    said = [process.communicate(timeout=TIMEOUT_S) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert json.loads(said[0][0])["ranks"] == 2 and said[1][0] == ""


def test_ranks_with_other_settings_stop_by_name(here: Path) -> None:
    done = phalanx(
        *("run", "--model", "tiny", "--prompt-token-ids", "1", "--max-tokens", "1"),
        launcher=(
            *("-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python"),
            *("bash", "-c", 'exec "$0" "$@" --num-drafts $((RANK + 1))', sys.executable),
        ),
    )
    assert done.returncode != 0
    assert "spec.num_drafts (rank 0: 1; rank 1: 2)" in done.stderr
