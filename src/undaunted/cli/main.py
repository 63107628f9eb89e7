"""The `undaunted` command: finds the subcommand and hands over to it."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from undaunted.base.streams import open_closed_streams
from undaunted.base.text import did_you_mean
from undaunted.cli.messages import USAGE_ERROR, show

if TYPE_CHECKING:
    from collections.abc import Sequence

_HELP = """\
Usage: undaunted COMMAND ...

Keeps PyTorch training running through crashes and hangs, and says what went
wrong.

Examples:
  undaunted run --nproc-per-node 4 --max-restarts 3 train.py --lr 0.1
  undaunted report                # what happened in the newest run here

Commands:
  run       run a training script on this node; restart it when a rank fails
  srun      run it on all nodes of a job of Slurm, in a batch script
  coordinator
            serve the coordination of a job of several nodes, on a host apart
  report    show the restarts of a run, their causes and what they cost
  explain   say on one page what happened, who it was, why, and what next
  top       show what every rank of a run is doing now, live
  ctl       ask a running job for stacks or status; restart or stop it
  chaos     run a training script under planned faults; say what became of each
  doctor    look at this machine before training starts
  checkpoint
            list, verify, show, compare, delete and export checkpoints
  flight    say who keeps the others waiting, from dumps of the Flight Recorder
  serve     answer over HTTP what a log tells of: an attribution service
  mcp       let an assistant explain failures, over the Model Context Protocol
  slurm-monitor
            have an attribution service look at the logs of Slurm's jobs
  completion
            print what bash, zsh or fish needs to complete command lines

undaunted COMMAND --help explains a command; undaunted --version says which
version this is. ft_launcher is another name for undaunted run. The package of
NVRx's names has nvrx-control for undaunted coordinator, nvrx-attrsvc for serve,
nvrx-mcp-analysis for mcp, and nvrx-smonsvc for slurm-monitor.
"""
COMMANDS = (
    *("run", "srun", "coordinator", "report", "explain", "top", "ctl", "chaos", "doctor"),
    *("checkpoint", "flight", "serve", "mcp", "slurm-monitor", "completion"),
)
_MOVED = {
    "simulate": "it is part of a checkout of undaunted: python -m simulator",
    "log-aggregator": "it is log_aggregator of undaunted's package nvidia-resiliency-ext",
}
_INTERRUPTED = 130  # as shells have it


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: this process's); return the exit code."""
    open_closed_streams()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks how a command line goes on
        from undaunted.cli.argument_parser import complete

        complete(COMMANDS)
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _main(words)
    except KeyboardInterrupt:  # before anything was started
        if words[:1] == ["run"]:
            print("undaunted run: interrupted before any rank was started", file=sys.stderr)
        return _INTERRUPTED


def _main(words: list[str]) -> int:
    if words[:1] == ["help"] and len(words) > 1:
        words = [words[1], "--help", *words[2:]]
    command = words[0] if words else ""
    if command in COMMANDS:
        module = import_module(f"undaunted.cli.{command.replace('-', '_')}")
        code: int = module.main(words[1:])
        return code
    if command in {"-h", "--help", "help"}:
        return show("", _HELP)
    if command == "--version":
        from undaunted import __version__

        return show("", f"undaunted {__version__}\n")
    print(_complaint(command), file=sys.stderr)
    return USAGE_ERROR


def ft_launcher() -> int:
    """Run this process's arguments as `undaunted run`: the name that NVRx's users know."""
    return main(["run", *sys.argv[1:]])


def nvrx_control() -> int:
    """Run this process's arguments as `undaunted coordinator`, under NVRx's name for it."""
    return main(["coordinator", *sys.argv[1:]])


def nvrx_attrsvc() -> int:
    """Run this process's arguments as `undaunted serve`, under NVRx's name for it."""
    return main(["serve", *sys.argv[1:]])


def nvrx_mcp_analysis() -> int:
    """Run this process's arguments as `undaunted mcp`, under NVRx's name for it."""
    return main(["mcp", *sys.argv[1:]])


def nvrx_smonsvc() -> int:
    """Run this process's arguments as `undaunted slurm-monitor`, under NVRx's name for it."""
    return main(["slurm-monitor", *sys.argv[1:]])


def _complaint(command: str) -> str:
    if not command:
        return _HELP.rstrip()
    if command in _MOVED:
        return f"undaunted: error: {command!r} is no command any more: {_MOVED[command]}"
    if command.startswith("-") or command.endswith(".py"):
        return f"undaunted: error: {command!r} is no command; to run a script: undaunted run ..."
    hint = did_you_mean(command, COMMANDS) or f"; choose {', '.join(COMMANDS)}"
    return f"undaunted: error: {command!r} is no command{hint}"


if __name__ == "__main__":
    sys.exit(main())
