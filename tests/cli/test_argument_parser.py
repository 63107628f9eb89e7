"""Parsers of argparse read what the commands themselves read, and complete in shells."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from undaunted.cli.argument_parser import argument_parser
from undaunted.cli.options import RUN
from undaunted.cli.report import REPORT
from undaunted.doctor.known_issues import FEATURES
from undaunted.fault_tolerance.config import FaultToleranceConfig

if TYPE_CHECKING:
    from pathlib import Path

LINES = (
    "train.py",
    "--nproc-per-node 4 --max-restarts 3 train.py --lr 0.1 --help",
    "--nproc_per_node=auto -r 0:3,1:2 -t3 -m package.train",
    "--preload a,b --preload c --inject-fault x --inject-fault y train.py",
    "--nnodes 2:4 --rdzv-conf join_timeout=7,lease=3 --elastic train.py",
    "--signals-to-handle TERM,USR1 --term-timeout 5m --shutdown-timeout none train.py",
    "--ft-rank-heartbeat-timeout 15m --ft_rank_section_timeouts step:60,save:none train.py",
    "--ft-learn-timeouts=false --ft-enable-nic-monitor=true --ft-log-level debug train.py",
    "--metrics-port 0 --metrics-address ::1 --health-checks xid,ecc train.py",
    "--ft-storage-health-check-path /a,/b --ft-per-cycle-applog-prefix /l/x.log train.py",
)


@pytest.mark.parametrize("line", LINES)
def test_both_readers_agree(line: str) -> None:
    parsed = RUN.parse(line.split(), {})
    args = argument_parser(RUN).parse_args(line.split())
    assert args.training_script == parsed.target
    assert args.training_script_args == list(parsed.args)
    for option in RUN.options:
        if not option.field:
            continue
        read = getattr(args, option.name.replace("-", "_"))
        if option.field.startswith("ft.") and not parsed.is_given(option.name):
            assert read is None
        else:
            assert read == option.value_in(parsed.options), option.name


def test_variables_give_defaults() -> None:
    environ = {"PET_MAX_RESTARTS": "3", "PET_FT_SEGMENT": "2"}
    args = argument_parser(RUN, environ).parse_args(["--ft-segment", "4", "train.py"])
    assert (args.max_restarts, args.ft_segment) == (3, 4)
    assert FaultToleranceConfig.from_args(args) == FaultToleranceConfig(segment=4)


@pytest.mark.parametrize("line", ["--max-restart 3 train.py", "--max-restarts x train.py", ""])
def test_mistakes_end_with_2(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        argument_parser(RUN).parse_args(line.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err


def test_an_operand() -> None:
    assert argument_parser(REPORT).parse_args(["--json", "r"]).operand == "r"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("undaunted re", ["report"]),
        ("undaunted run --ft-segment-h", ["--ft-segment-health-check-dir"]),
        ("undaunted run --max-r", ["--max-restarts"]),
        ("ft_launcher --nno", ["--nnodes"]),
        ("nvrx-control --nno", ["--nnodes"]),
        ("undaunted chaos --nproc", ["--nproc-per-node"]),
        ("undaunted chaos --save", ["--save-plan"]),
        ("undaunted run --nnodes 2 scr", ["script.py"]),
        ("undaunted run --worker-start ", ["fresh", "warm"]),
        ("undaunted run --worker-start warm,", []),
        ("undaunted run --nproc-per-node ", ["auto", "cpu", "gpu"]),
        ("undaunted run --ft-attribution-stop-action n", ["no-restart"]),
        ("undaunted run --ft-log-level E", ["ERROR"]),
        ("undaunted run --ft-learn-timeouts f", ["false"]),
        ("undaunted run --signals-to-handle SIGUSR1,SIGT", ["SIGUSR1,SIGTERM"]),
        ("undaunted run --rdzv-backend s", ["static"]),
        ("undaunted run --tee ", ["0", "1", "2", "3"]),
        ("undaunted chaos --faults kill,disk-f", ["kill,disk-full"]),
        ("undaunted doctor --for ", sorted(FEATURES)),
    ],
)
def test_completion(tmp_path: Path, line: str, found: list[str]) -> None:
    pytest.importorskip("argcomplete", reason="argcomplete is in the group 'test': `make setup`")
    (tmp_path / "script.py").touch()
    answer = tmp_path / "answer"
    shell = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
        "PYTHONPATH": ":".join(sys.path),
    }
    program = [sys.executable, "-m", "undaunted"]
    subprocess.run(program, env={**os.environ, **shell}, cwd=tmp_path, timeout=60, check=True)
    assert sorted(answer.read_text().split()) == found
