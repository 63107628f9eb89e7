"""`undaunted doctor`: is this a good place to train?"""

import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, Protocol

import msgspec

from undaunted import __version__
from undaunted.base import console, values
from undaunted.base.options import Kind, Opt
from undaunted.base.sizes import parse_size, whole
from undaunted.base.streams import take_any_text
from undaunted.base.values import Flag, Seconds, Text
from undaunted.cli.command import Command, Parsed
from undaunted.cli.messages import UsageError, json_text, printing
from undaunted.coordinator.wire.address import Address, parse_address
from undaunted.doctor.facts import Asked
from undaunted.doctor.known_issues import FEATURES

if TYPE_CHECKING:
    from undaunted.base.console import Line
    from undaunted.doctor.meeting import Meeting
    from undaunted.doctor.report import DoctorReport

_FAILURES = 1
_TERMINATED = 143  # as shells have it
_PORT = 29400
_MOST_PORT = 0xFFFF
_Positive = Annotated[int, Kind(values.whole(1), "N")]


def _features(text: str) -> frozenset[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in words if word not in FEATURES]
    if unknown:
        raise ValueError(f"{unknown[0]!r}: choose from {', '.join(FEATURES)}")
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
    from undaunted.coordinator.etcd.store import parse_store

    return tuple(parse_address(endpoint) for endpoint in parse_store(text).endpoints)


class DoctorOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Options of `undaunted doctor`."""

    features: Annotated[
        frozenset[str],
        Kind(_features, "FEATURE,...", choices=tuple(FEATURES)),
        Opt(
            "Look also for problems of these features: "
            + "; ".join(f"{name} = {text}" for name, text in FEATURES.items()),
            "Features",
            name="for",
        ),
    ] = frozenset()
    nproc_per_node: Annotated[
        int | None, Kind(values.whole(1), "N"), Opt("Ranks on this node", shown="not known")
    ] = None
    nnodes: Annotated[_Positive, Opt("Number of nodes")] = 1
    checkpoint_size: Annotated[
        int,
        Kind(parse_size, "SIZE"),
        Opt("Bytes of one checkpoint, such as 80GB", shown="not known"),
    ] = 0
    checkpoint_dir: Annotated[
        list[str],
        Kind(values.one_more, "DIR", repeat=True),
        Opt(
            "Write 64 MiB there for a trial; nothing is left. May be given several times",
            "Directories",
        ),
    ] = []
    log_dir: Annotated[
        list[str], Kind(values.one_more, "DIR", repeat=True), Opt("The same for logs")
    ] = []
    hosts: Annotated[
        tuple[Address, ...],
        Kind(_hosts, "HOST[:PORT],..."),
        Opt(
            "Other hosts: can their names be resolved, do they answer? Nothing needs to listen "
            "there",
            shown=f"port {_PORT}",
        ),
    ] = ()
    rdzv_endpoint: Annotated[
        Address | None,
        Kind(_endpoint, "HOST:PORT"),
        Opt(
            "The place where the nodes of the job meet. With --nnodes all doctors meet there, "
            "compare versions, limits and clocks, and try to reach each other: start it on each "
            "node"
        ),
    ] = None
    coordinator_store: Annotated[
        tuple[Address, ...],
        Kind(_etcd, "etcd://HOST:PORT"),
        Opt("Etcd that will coordinate the job: its version is asked for"),
    ] = ()
    coordinator_token_file: Annotated[
        Text,
        Opt(
            "The secret that the nodes share, as for undaunted run",
            "How",
            metavar="FILE",
            shown="UNDAUNTED_TOKEN, else ~/.config/undaunted/token",
        ),
    ] = ""
    join_timeout: Annotated[Seconds, Opt("How long to wait for the other nodes")] = 120.0
    read_log: Annotated[
        Text,
        Opt("Only explain this log, as undaunted explain FILE does", metavar="FILE"),
    ] = ""
    json: Annotated[Flag, Opt("Print all of it as JSON")] = False
    no_self_test: Annotated[Flag, Opt("Do not run the small job")] = False
    keep: Annotated[Flag, Opt("Leave the small job's directory")] = False


DOCTOR = Command(
    "doctor",
    DoctorOptions,
    "[OPTIONS]",
    """\
Looks at this machine before training starts: versions with known bugs,
environment variables that hurt, shared memory, limits, ports and names, disks,
GPUs. Then it runs a job of two ranks for ten seconds, kills one, hangs one, and
sees whether both are recovered from. Each finding says what was found, what
was wanted, why it matters and what to do; docs/doctor.md lists all of them.

Run it where training will run: in the same container, with the same
interpreter and environment, best as the first line of the job's script.

Examples:
  undaunted doctor
  undaunted doctor --for inprocess,async-checkpoint --nproc-per-node 8 \\
      --checkpoint-dir /scratch/ckpt --checkpoint-size 80GB --log-dir /logs
  undaunted doctor --hosts node1,node2,node3 --no-self-test
  srun undaunted doctor --nnodes 4 --rdzv-endpoint node0:29400
""",
    "Exits with 0 if nothing stops training (there may be warnings), 1 if something does, 2 after "
    "wrong use.",
)


def main(argv: Sequence[str]) -> int:
    """Examine this machine as arguments after ``undaunted doctor`` say; return the exit code."""
    return DOCTOR.run(argv, _look)


def _look(parsed: Parsed[DoctorOptions]) -> int:
    options = parsed.options
    if options.read_log == "-":
        raise UsageError("--read-log reads a file: dmesg > kernel.log, then name kernel.log")
    if options.read_log:
        from undaunted.cli.explain import main as explain

        return explain([*["--json"] * options.json, options.read_log])
    from undaunted.doctor.report import render

    before = signal.signal(signal.SIGTERM, _terminated)  # what was started is ended then, too
    try:
        report = _examine(options)
        show(report, partial(render, report), as_json=options.json)
        return _FAILURES if report.count("fail") else 0
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminated(_number: int, _frame: object) -> NoReturn:
    raise SystemExit(_TERMINATED)


def _examine(options: DoctorOptions) -> "DoctorReport":
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
        self_test=not options.no_self_test,
        keep=options.keep,
        say=_say if sys.stderr.isatty() and not options.json else lambda _line: None,
    )


def _absolute(path: str) -> str:
    try:
        return str(Path(path).absolute())
    except OSError as error:
        raise UsageError(
            f"{path}: the current directory is gone ({error.strerror}); name all of the path"
        ) from None


def _meeting(options: DoctorOptions) -> "Meeting | None":
    """Return how to meet the other nodes; None if there are none, or nobody says where."""
    if options.rdzv_endpoint is None or options.nnodes == 1:
        return None
    from undaunted.coordinator.wire.credentials import TokenError
    from undaunted.doctor.meeting import Meeting
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
        raise UsageError(str(error)) from None
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


class Render(Protocol):
    """Makes lines for a terminal with so many columns, None = for none."""

    def __call__(self, *, width: int | None = None) -> "list[Line]":
        """Return the lines."""


def show(value: object, render: Render, *, as_json: bool) -> None:
    """Print a value as JSON, or what ``render`` makes of it; a pager may end before."""
    take_any_text(for_programs=as_json)
    try:
        with printing():
            if as_json:
                sys.stdout.write(json_text(value))
            else:
                console.show(render(width=console.columns()))
    except UsageError as error:
        print(f"undaunted doctor: {error}", file=sys.stderr)
