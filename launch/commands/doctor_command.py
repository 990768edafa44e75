"""phalanx doctor: what would stop this machine from running this model on N ranks, and the mend."""

from __future__ import annotations

import argparse
import dataclasses
import json
import socket

from phalanx.launch.args import add_config, take_config
from phalanx.launch.asked import asked_for
from phalanx.launch.doctor_checks import (
    Finding,
    check_cores,
    check_demo_extra,
    check_flags,
    check_gpus,
    check_memory,
    check_native,
    check_nccl,
    check_packages,
    check_port,
    check_python,
    check_shared_memory,
    fail,
    ok,
    worst,
)
from phalanx.launch.model_source import NAMED, cache_dir
from phalanx.runtime.flags import Flags, read_environment

# What torchrun takes unless told otherwise.
TORCHRUN_PORT = 29500
SIGNS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `phalanx doctor`."""
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    parser.add_argument(
        "--ranks", type=int, default=1, metavar="N", help="ranks to be run on this host (default 1)"
    )
    parser.add_argument(
        "--master-port",
        type=int,
        default=TORCHRUN_PORT,
        metavar="PORT",
        help=f"rendezvous port of torchrun or SLURM (default {TORCHRUN_PORT})",
    )
    add_config(parser)


def run(options: argparse.Namespace) -> int:
    """Print the findings; status 1 when one of them fails."""
    findings = examine(options)
    if options.json:
        rows = [dataclasses.asdict(finding) for finding in findings]
        print(json.dumps({"status": worst(findings), "findings": rows}, indent=2))
    else:
        print("\n".join(lines(findings)))
    return 1 if worst(findings) == "fail" else 0


def examine(options: argparse.Namespace) -> list[Finding]:
    """Every check, in the order in which a start would meet the trouble."""
    config = take_config(vars(options))
    flags, device = read_environment(), config.model.device
    if options.ranks < 1:
        return [fail("ranks", f"{options.ranks}", mend="give --ranks 1 or more")]
    findings = [check_python(), *check_packages(), check_native(flags), *check_flags(flags)]
    findings.append(check_cores(ranks=options.ranks, threads=config.model.threads))
    findings.append(check_shared_memory())
    findings.append(check_port(socket.gethostname(), options.master_port))
    findings.extend([check_gpus(ranks=options.ranks, device=device), check_nccl(device=device)])
    if config.model.model == "demo":
        findings.append(check_demo_extra())
    if _not_prepared_yet(config.model.model, flags):
        detail = f"{config.model.model} is not in {cache_dir(flags)} yet; the first run prepares it"
        return [*findings, ok("model", detail)]
    return [*findings, *check_memory(asked_for(options), ranks=options.ranks)]


def _not_prepared_yet(model: str, flags: Flags) -> bool:
    """A named model that a look at this machine should not go and download."""
    return model in NAMED and model != "tiny" and not (cache_dir(flags) / model).is_dir()


def lines(findings: list[Finding]) -> list[str]:
    """One line a finding, its mend below it."""
    width = max(len(finding.name) for finding in findings)
    text = []
    for finding in findings:
        text.append(f"{SIGNS[finding.status]}  {finding.name.ljust(width)}  {finding.detail}")
        if finding.mend:
            text.append(f"      {' ' * width}  -> {finding.mend}")
    return text
