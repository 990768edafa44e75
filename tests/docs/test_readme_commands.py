"""The commands that the README shows work as shown (with `tiny` in the place of the demo model)."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from phalanx.launch.cli import main
from tests.architecture.tree import ROOT
from tests.launch.test_run_command import phalanx

SHORT = ["--max-tokens", "4"]


def shown() -> list[str]:
    """Lines of the README's bash blocks that run phalanx."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith(("phalanx ", "torchrun "))]


def make_targets(text: str) -> set[str]:
    return set(re.findall(r"^make ([a-z]+)", text, flags=re.MULTILINE))


@pytest.fixture(autouse=True)
def cache_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_CACHE_DIR", str(tmp_path))


def test_the_readme_shows_commands() -> None:
    assert len(shown()) >= 6


@pytest.mark.parametrize("line", shown())
def test_shown_command_works(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(line.replace("--model demo", "--model tiny"))
    if "run" in words:
        words += SHORT
    if words[0] == "phalanx" and "--ranks" not in words:
        assert main(words[1:]) == 0
        assert capsys.readouterr().out
        return
    launcher: tuple[str, ...] = ()
    if words[0] == "torchrun":
        module = words.index("-m")
        launcher = ("-m", "torch.distributed.run", *words[1:module])
        words = words[module + 1 :]
    done = phalanx(*words[1:], launcher=launcher)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_make_targets_named_in_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rules = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = make_targets(text) | {match for match in re.findall(r"`make ([a-z]+)", text)}
    assert named and named <= rules, f"no such target: {sorted(named - rules)}"
