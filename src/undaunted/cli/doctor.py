"""`undaunted doctor`: is this a good place to train?"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from undaunted import __version__
from undaunted.base.durations import parse_seconds
from undaunted.cli.doctor_output import show
from undaunted.coordinator.wire.address import Address, parse_address
from undaunted.doctor.checks.sizes import parse_size, whole
from undaunted.doctor.facts import Asked
from undaunted.doctor.known_issues import FEATURES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from undaunted.doctor.meeting.meet import Meeting
    from undaunted.doctor.report import Report

_USAGE_ERROR = 2
_FAILURES = 1
_TERMINATED = 143  # as shells have it
_PORT = 29400
_MOST_PORT = 0xFFFF
_DESCRIPTION = """\
Looks at this machine before training starts: versions with known bugs,
environment variables that hurt, shared memory, limits, ports and names, disks,
GPUs. Then it runs a job of two ranks for ten seconds, kills one, hangs one, and
sees whether both are recovered from. Each finding says what was found, what
was wanted, why it matters and what to do; docs/doctor.md lists all of them.

Run it where training will run: in the same container, with the same
interpreter and environment, best as the first line of the job's script.

examples:
  undaunted doctor
  undaunted doctor --for inprocess,async-checkpoint --nproc-per-node 8 \\
      --checkpoint-dir /scratch/ckpt --checkpoint-size 80GB --log-dir /logs
  undaunted doctor --hosts node1,node2,node3 --no-self-test
  srun undaunted doctor --nnodes 4 --rdzv-endpoint node0:29400
"""
_EPILOG = """\
exit codes: 0 nothing that stops training (there may be warnings), 1 there is,
2 wrong use.
"""


class _UsageError(Exception):
    """It cannot be done as asked; the message says why and what to do."""


def main(argv: Sequence[str]) -> int:
    """Examine this machine as arguments after ``undaunted doctor`` say; return the exit code."""
    options = _parser().parse_args(argv)
    if options.read_log is not None:
        return _read_log(options.read_log, as_json=options.json)
    from undaunted.doctor.report import render

    before = signal.signal(signal.SIGTERM, _terminated)  # what was started is ended then, too
    try:
        report = _examine(options)
        show(report, partial(render, report), as_json=options.json)
        return _FAILURES if report.count("fail") else 0
    except _UsageError as error:
        print(f"undaunted doctor: error: {error}", file=sys.stderr)
        return _USAGE_ERROR
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminated(_number: int, _frame: object) -> NoReturn:
    raise SystemExit(_TERMINATED)


def _examine(options: argparse.Namespace) -> Report:
    from undaunted.doctor.examine import examine
    from undaunted.doctor.gather import Places

    directories = [(path, "checkpoints") for path in options.checkpoint_dir]
    directories += [(path, "logs") for path in options.log_dir]
    meeting = _meeting(options)
    places = Places(
        node=os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0],
        python=os.environ.get("PYTHON_EXEC") or sys.executable,
        hosts=options.hosts,
        directories=tuple((_absolute(path), purpose) for path, purpose in directories),
        etcd=options.coordinator_store,
        stores=_stores(options.rdzv_endpoint if meeting is None else None, os.environ),
    )
    asked = Asked(
        features=options.features,
        nproc_per_node=options.nproc_per_node,
        nnodes=max(options.nnodes, len(options.hosts)),
        port=options.rdzv_endpoint.port if options.rdzv_endpoint else 0,
        checkpoint_bytes=options.checkpoint_size,
    )
    return examine(
        places,
        asked,
        version=__version__,
        meeting=meeting,
        self_test=options.self_test,
        keep=options.keep,
        say=_say if sys.stderr.isatty() and not options.json else lambda _line: None,
    )


def _absolute(path: str) -> str:
    try:
        return str(Path(path).absolute())
    except OSError as error:
        raise _UsageError(
            f"{path}: the current directory is gone ({error.strerror}); name all of the path"
        ) from None


def _meeting(options: argparse.Namespace) -> Meeting | None:
    """Return how to meet the other nodes; None if there are none, or nobody says where."""
    if options.rdzv_endpoint is None or options.nnodes == 1:
        return None
    from undaunted.coordinator.wire.credentials import TokenError
    from undaunted.doctor.meeting.meet import Meeting
    from undaunted.fault_tolerance.job_access import token
    from undaunted.fault_tolerance.nodes_config import Nodes

    endpoint = str(options.rdzv_endpoint)
    nodes = Nodes(
        min_nodes=options.nnodes,
        max_nodes=options.nnodes,
        endpoints=[endpoint],
        is_host=False,
        address=options.rdzv_endpoint.host,
        token_file=options.coordinator_token_file or "",
    )
    try:
        secret = token(nodes)
    except TokenError as error:
        raise _UsageError(str(error)) from None
    return Meeting(
        endpoint=endpoint, nodes=options.nnodes, token=secret, join_s=options.join_timeout
    )


def _stores(endpoint: Address | None, environ: Mapping[str, str]) -> dict[str, Address]:
    """Return where ranks or nodes will meet, by what says so."""
    found = {}
    if endpoint is not None:
        found["--rdzv-endpoint"] = endpoint
    if master := environ.get("MASTER_ADDR", "").strip():
        port = whole(environ.get("MASTER_PORT")) or 0
        found["MASTER_ADDR"] = Address(master, port if 0 < port <= _MOST_PORT else 0)
    return found


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _read_log(name: str, *, as_json: bool) -> int:
    """Explain the messages of a log; return the exit code."""
    from undaunted.doctor.known_issues import known_issues
    from undaunted.doctor.log_reader import findings_of, lines_of, scan
    from undaunted.doctor.report import render_messages

    messages = known_issues().messages
    try:
        if name == "-":
            seen = scan(lines_of(sys.stdin.buffer), messages)
        else:
            with Path(name).open("rb") as file:
                seen = scan(lines_of(file), messages)
    except OSError as error:
        print(f"undaunted doctor: error: {name}: {error.strerror}", file=sys.stderr)
        return _USAGE_ERROR
    findings = findings_of(seen)
    show(findings, partial(render_messages, findings), as_json=as_json)
    return 0


# --- arguments ------------------------------------------------------------------------------------


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="undaunted doctor",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = parser.add_argument_group("what is to be done here")
    what.add_argument(
        "--for",
        dest="features",
        type=_features,
        default=frozenset(),
        metavar="FEATURE,...",
        help="look also for what matters only for these: "
        + "; ".join(f"{name} = {text}" for name, text in FEATURES.items()),
    )
    what.add_argument(
        "--nproc-per-node", type=_positive, metavar="N", help="ranks on this node [not known]"
    )
    what.add_argument("--nnodes", type=_positive, default=1, metavar="N", help="nodes [1]")
    what.add_argument(
        "--checkpoint-size",
        type=_converted(parse_size),
        default=0,
        metavar="SIZE",
        help="bytes of one checkpoint, such as 80GB [not known]",
    )
    where = parser.add_argument_group("where to look")
    where.add_argument(
        "--checkpoint-dir",
        action="append",
        default=[],
        metavar="DIR",
        help="write 64 MiB there for a trial; nothing is left. May be given several times",
    )
    where.add_argument(
        "--log-dir", action="append", default=[], metavar="DIR", help="the same for logs"
    )
    where.add_argument(
        "--hosts",
        type=_converted(_hosts),
        default=(),
        metavar="HOST[:PORT],...",
        help="other hosts: can their names be resolved, do they answer? Nothing needs to listen "
        f"there [port {_PORT}]",
    )
    where.add_argument(
        "--rdzv-endpoint",
        type=_converted(_endpoint),
        metavar="HOST:PORT",
        help="where the nodes of the job meet. With --nnodes the doctors of all nodes meet there, "
        "compare versions, limits and clocks, and try to reach each other: start it on each node",
    )
    where.add_argument(
        "--coordinator-store",
        type=_converted(_etcd),
        default=(),
        metavar="etcd://HOST:PORT",
        help="etcd that will coordinate the job: its version is asked for",
    )
    how = parser.add_argument_group("how")
    how.add_argument(
        "--coordinator-token-file",
        metavar="FILE",
        help="the secret that the nodes share, as for undaunted run [UNDAUNTED_TOKEN, else "
        "~/.config/undaunted/token]",
    )
    how.add_argument(
        "--join-timeout",
        type=_converted(parse_seconds),
        default=120.0,
        metavar="TIME",
        help="how long to wait for the other nodes [120]",
    )
    how.add_argument(
        "--read-log",
        metavar="FILE",
        help="only say what known messages in this log mean, likely causes first; - is the "
        "standard input",
    )
    how.add_argument("--json", action="store_true", help="print all of it as JSON")
    how.add_argument(
        "--no-self-test", dest="self_test", action="store_false", help="do not run the small job"
    )
    how.add_argument("--keep", action="store_true", help="leave the small job's directory")
    return parser


def _converted(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """Have argparse show what a conversion complains of."""

    def call(text: str) -> Any:
        try:
            return convert(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return call


def _features(text: str) -> frozenset[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in words if word not in FEATURES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r}: choose from {', '.join(FEATURES)}")
    return frozenset(words)


def _hosts(text: str) -> tuple[Address, ...]:
    found = []
    for word in (word.strip() for word in text.split(",")):
        if not word:
            continue
        number = word.count(":") > 1 and "[" not in word  # of IPv6, without a port
        bare = number or ":" not in word or word.endswith("]")
        host = f"[{word}]" if number else word
        found.append(parse_address(f"{host}:{_PORT}" if bare else word))
    if not found or not all(address.host and address.port for address in found):
        raise ValueError(
            f"{text!r}: give names of hosts, with a port if you like: node1,node2:29500"
        )
    return tuple(dict.fromkeys(found))


def _endpoint(text: str) -> Address:
    address = parse_address(text)
    if not address.host or not address.port:
        raise ValueError(f"{text!r}: the nodes need a host and a port to meet: node0:29400")
    return address


def _etcd(text: str) -> tuple[Address, ...]:
    from undaunted.coordinator.etcd.place import parse_place

    return tuple(parse_address(endpoint) for endpoint in parse_place(text).endpoints)
