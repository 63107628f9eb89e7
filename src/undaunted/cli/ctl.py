"""`undaunted ctl`: ask a running job, and tell it what to do."""

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from undaunted.base import process, values
from undaunted.base.options import Kind, Opt
from undaunted.base.streams import take_any_text
from undaunted.base.text import count, format_duration, format_ranks, printable
from undaunted.base.values import Flag, Limit
from undaunted.cli.command import Command, Parsed
from undaunted.cli.messages import UsageError, json_text, printing
from undaunted.coordinator.wire.frames import FrameDecoder, FrameError, encode
from undaunted.coordinator.wire.sockets import peer
from undaunted.fault_tolerance import control_socket as s
from undaunted.journal.reader import DEFAULT_RUNS, newest_run

T = TypeVar("T")

ANSWER_S = 15.0  # for a launcher to answer; it needs 5 s itself at most
_PIECE = 1 << 20
_REFUSED = 1  # exit code: a launcher has said no, or nobody has answered


# --- options --------------------------------------------------------------------------------------


class _Any(msgspec.Struct, kw_only=True, frozen=True):
    json: Annotated[Flag, Opt("Print the answer as JSON", "Options")] = False
    node: Annotated[
        str,
        Kind(values.node_name, "NAME"),
        Opt("Ask this launcher, where several share the directory", shown="all, or the first"),
    ] = ""


class StatusOptions(_Any, kw_only=True, frozen=True):
    """Options of `undaunted ctl status`, `flight`, and `dump`."""


class StacksOptions(_Any, kw_only=True, frozen=True):
    """Options of `undaunted ctl stacks`."""

    rank: Annotated[
        int, Kind(values.whole(0), "N"), Opt("Of one rank only", "Which ranks", shown="all")
    ] = -1


class StopOptions(_Any, kw_only=True, frozen=True):
    """Options of `undaunted ctl stop`, `restart` and `exclude`."""

    after_checkpoint: Annotated[
        Flag,
        Opt(
            "Let the ranks save before: those of a Session stop after the same iteration, others "
            "get SIGTERM, within --term-timeout; otherwise they are killed after 15 s",
            "How",
        ),
    ] = False


class LimitsOptions(_Any, kw_only=True, frozen=True):
    """Options of `undaunted ctl limits`; -1 = not given."""

    heartbeat: Annotated[
        Limit, Opt("Longest time between two heartbeats", "Limits", shown="as it is")
    ] = -1
    initial_heartbeat: Annotated[
        Limit, Opt("Longest time until the first one", "Limits", shown="as it is")
    ] = -1
    out_of_section: Annotated[
        Limit, Opt("Longest time outside all sections", "Limits", shown="as it is")
    ] = -1
    sections: Annotated[
        dict[str, float | None],
        Kind(values.sections, "NAME:TIME,..."),
        Opt("Longest time in each section", "Limits", shown="as they are"),
    ] = {}


_ABOUT = {
    "status": "Shows what runs, who leads the job, and which limits are in force.",
    "stacks": "Shows what every rank does: the stacks of all its threads. Nothing is ended.",
    "flight": "Says which rank keeps the others waiting, by torch's Flight Recorders.",
    "restart": "Stops the round and begins another one. It costs none of --max-restarts.",
    "stop": "Ends the job.",
    "exclude": "Goes on without NODE, with a spare node in its place, if that is possible.",
    "limits": "Holds all ranks to other limits, from now on; `none` turns one off.",
    "dump": "Prints the last events and commands of each state machine, as JSON lines.",
}
_OPTIONS = {
    "stacks": StacksOptions,
    "restart": StopOptions,
    "stop": StopOptions,
    "exclude": StopOptions,
    "limits": LimitsOptions,
}
ACTIONS: dict[str, Command[Any]] = {
    name: Command(
        f"ctl RUN {name}",
        _OPTIONS.get(name, StatusOptions),
        "[OPTIONS] NODE" if name == "exclude" else "[OPTIONS]",
        f"{about}\n",
        operand="NODE" if name == "exclude" else "",
    )
    for name, about in _ABOUT.items()
}


class CtlOptions(msgspec.Struct, kw_only=True, frozen=True):
    """`undaunted ctl` has no options of its own, but its actions have."""


CTL = Command(
    "ctl",
    CtlOptions,
    "[RUN] ACTION [OPTIONS]",
    f"""\
Asks the running launchers of RUN on this machine, or tells them what to do.
RUN is the directory of the run; without it, the newest one under
./{DEFAULT_RUNS}.

Actions:
  status    what runs, who leads the job, which limits are in force
  stacks    what every rank does; nothing is ended
  flight    who keeps the others waiting, by torch's Flight Recorders
  restart   stop the round, and begin another one
  stop      end the job
  exclude   go on without a node
  limits    hold all ranks to other limits
  dump      the last events and commands of each state machine

undaunted ctl ACTION --help explains an action.
""",
    operand="ACTION",
    is_program=True,
)


def main(argv: Sequence[str]) -> int:
    """Ask a launcher.

    Args:
        argv: arguments after ``undaunted ctl``.

    Returns:
        0, 1 if a launcher refuses or does not answer, 2 if the arguments are wrong.
    """
    return CTL.run(argv, _act)


def _act(parsed: Parsed[CtlOptions]) -> int:
    words = [parsed.target, *parsed.args] if parsed.target else []
    run = words.pop(0) if words and words[0] not in ACTIONS else ""
    if not words or words[0] not in ACTIONS:
        given = f"{(words or [run])[0]!r} is no action" if words or run else "an action is missing"
        raise UsageError(f"{given}: choose {', '.join(ACTIONS)}; see --help")
    action = words.pop(0)
    return ACTIONS[action].run(words, lambda given: _answered(action, run, given))


def _answered(action: str, run: str, parsed: Parsed[Any]) -> int:
    try:
        return _BODIES[action](_directory(run), parsed)
    except NoAnswerError as error:
        print(f"undaunted ctl {action}: {printable(str(error))}", file=sys.stderr)
        return _REFUSED


def _directory(run: str) -> Path:
    found = Path(run) if run else newest_run()
    if found is None:
        raise UsageError(f"no run under ./{DEFAULT_RUNS}; name its directory: undaunted ctl RUN")
    if not os.path.isdir(found):  # noqa: PTH112 - Path's raises where a name is too long
        raise UsageError(f"{found} is no directory; `undaunted run` prints it when a run starts")
    return found


# --- what is asked --------------------------------------------------------------------------------


def _status(run: Path, parsed: Parsed[Any]) -> int:
    return _of_all(run, parsed, s.Status(), s.NodeStatus, _status_lines)


def _stacks(run: Path, parsed: Parsed[Any]) -> int:
    rank = parsed.options.rank

    def chosen(all_ranks: list[s.RankStacks]) -> list[s.RankStacks]:
        here.extend(each.rank for each in all_ranks)
        return [each for each in all_ranks if rank in (-1, each.rank)]

    here: list[int] = []
    code = _of_all(run, parsed, s.Stacks(), list[s.RankStacks], _stacks_lines, chosen)
    if rank >= 0 and rank not in here:
        raise NoAnswerError(f"there is no rank {rank} here, but {_ranks(sorted(here))}")
    return code


def _flight(run: Path, parsed: Parsed[Any]) -> int:
    from undaunted.attribution.flight.culprits import analyse
    from undaunted.attribution.flight.files import Dumps
    from undaunted.cli.flight import lines_of

    said = [
        each for reply in _replies(run, parsed, s.Flight()) for each in _body(reply, _RECORDINGS)
    ]
    recordings = sorted((each.recording for each in said if each.recording), key=lambda r: r.rank)
    deaf = [each.rank for each in said if each.deaf]
    if parsed.options.json:
        found = analyse(recordings) if recordings else None
        _print_json({"analysis": found, "deaf": deaf, "recordings": recordings})
        return 0
    text = list(lines_of(analyse(recordings), Dumps(recordings, []))) if recordings else []
    empty = [each.rank for each in said if each.recording is None and not each.deaf]
    if empty:
        text.append(f"nothing is recorded of {_ranks(empty)}; see --flight-recorder")
    if deaf:
        text.append(f"no answer from {_ranks(deaf)}: its interpreter does not run; see stacks")
    _print(text)
    return 0


def _dump(run: Path, parsed: Parsed[Any]) -> int:
    replies = _replies(run, parsed, s.Dump())
    _print(bytes(line).decode() for reply in replies for line in _body(reply, list[msgspec.Raw]))
    return 0


def _restart(run: Path, parsed: Parsed[Any]) -> int:
    return _order(run, parsed, s.Restart(save=parsed.options.after_checkpoint))


def _stop(run: Path, parsed: Parsed[Any]) -> int:
    return _order(run, parsed, s.Stop(save=parsed.options.after_checkpoint))


def _exclude(run: Path, parsed: Parsed[Any]) -> int:
    if not parsed.target:
        raise UsageError("name the node: undaunted ctl RUN exclude NODE; status shows them")
    return _order(
        run, parsed, s.Exclude(target=parsed.target, save=parsed.options.after_checkpoint)
    )


def _limits(run: Path, parsed: Parsed[Any]) -> int:
    options = parsed.options
    names = ("heartbeat", "initial_heartbeat", "out_of_section")
    chosen = [name for name in names if parsed.is_given(name.replace("_", "-"))]
    given = {name: getattr(options, name) for name in chosen}
    given |= {f"section:{name}": seconds for name, seconds in options.sections.items()}
    if not given:
        raise UsageError("give a limit, such as --heartbeat 10m; status shows those in force")
    return _order(run, parsed, s.Limits(limits=given))


_BODIES: dict[str, Callable[[Path, Parsed[Any]], int]] = {
    "status": _status,
    "stacks": _stacks,
    "flight": _flight,
    "restart": _restart,
    "stop": _stop,
    "exclude": _exclude,
    "limits": _limits,
    "dump": _dump,
}
_RECORDINGS = list[s.RankRecording]


def _of_all(
    run: Path,
    parsed: Parsed[Any],
    question: s.Question,
    kind: type[T],
    lines: Callable[[T], Iterator[str]],
    chosen: Callable[[T], T] = lambda body: body,
) -> int:
    """Ask every launcher, and print what they answer."""
    replies = _replies(run, parsed, question)
    bodies = {reply.node: chosen(_body(reply, kind)) for reply in replies}
    if parsed.options.json:
        _print_json(bodies)
    else:
        several = len(bodies) > 1
        heads = {node: [f"=== node {node} ==="] if several else [] for node in bodies}
        _print(line for node, body in bodies.items() for line in [*heads[node], *lines(body)])
    return 0


def _order(run: Path, parsed: Parsed[Any], question: s.Order) -> int:
    """Tell one launcher, which tells the leader of the job."""
    reply = next(_replies(run, parsed, question))
    decision = _body(reply, s.Decision)
    if parsed.options.json:
        _print_json({"node": reply.node, **msgspec.to_builtins(decision)})
    else:
        _print([decision.line])
    return 0 if decision.done else _REFUSED


# --- for people -----------------------------------------------------------------------------------


def _status_lines(status: s.NodeStatus) -> Iterator[str]:
    job = status.job
    yield f"job       {status.run_id}, round {job.round}, {job.state}{_restarts(job)}"
    if job.role != "alone":
        at = f" at {job.leader_address}" if job.leader_address else ""
        unnamed = "a host of its own" if at else "not known"
        yield f"leader    {job.leader or unnamed}{at}, epoch {job.epoch}"
    for member in job.members:
        yield f"member    {member.node}: {_ranks(member.ranks)}{_standing(member)}"
    if job.lease_left_s is not None:
        yield f"lease     {job.lease_left_s:.1f} s left of {job.lease_s:g} s"
    if job.role != "alone":
        spares = "only the leader knows" if job.spares is None else ", ".join(job.spares) or "none"
        yield f"spares    {spares}"
    for node, reason in job.excluded.items():
        yield f"excluded  {node}: {reason}"
    launcher = f"pid {status.pid}, undaunted {status.version}"
    yield f"node      {status.node} ({job.role}): {status.state}, round {status.round}, {launcher}"
    for rank in status.ranks:
        yield f"rank      {rank.rank}: {_rank(rank)}"
    for limit in status.limits:
        seconds = "off" if limit.seconds is None else format_duration(limit.seconds)
        held = "" if len(limit.ranks) == len(status.ranks) else f", {_ranks(limit.ranks)}"
        yield f"limit     {limit.name}: {seconds} ({limit.source}{held})"


def _restarts(job: s.JobStatus) -> str:
    used = "" if job.restarts_used is None else f", {count(job.restarts_used, 'restart')} used"
    return used if job.restarts_left is None else f"{used}, {job.restarts_left} left"


def _standing(member: s.MemberStatus) -> str:
    left = member.lease_left_s
    lease = "" if left is None else f", lease {left:.1f} s left"
    return f"{', votes' if member.votes else ''}{lease}"


def _rank(rank: s.RankStatus) -> str:
    if rank.ended:
        return f"pid {rank.pid}, ended: {rank.ended}"
    at = "" if rank.iteration is None else f", iteration {rank.iteration}"
    age = rank.heartbeat_age_s
    heard = "" if age is None else f", last heartbeat {format_duration(age)} ago"
    opened = "".join(
        f", section {name} open for {format_duration(seconds)}"
        for name, seconds in rank.sections.items()
    )
    return f"pid {rank.pid}, {rank.phase}{at}{heard}{opened}"


def _stacks_lines(ranks: list[s.RankStacks]) -> Iterator[str]:
    for each in ranks:
        at = "" if each.iteration is None else f", iteration {each.iteration}"
        where = f", in {each.frame}" if each.frame else ""
        waits = f", waits in {each.waits_in}" if each.waits_in else ""
        yield f"--- rank {each.rank}, pid {each.pid}: {each.state}{at}{where}{waits} ---"
        yield from (each.stacks or f"(no stacks: {each.reason})").rstrip().splitlines()
        yield ""


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {format_ranks(ranks)}"


def _print(lines: Iterable[str]) -> None:
    take_any_text(for_programs=False)
    with printing():
        sys.stdout.write("".join(f"{printable(line)}\n" for line in lines))


def _print_json(value: object) -> None:
    take_any_text(for_programs=True)
    with printing():
        sys.stdout.write(json_text(value))


# --- the connection -------------------------------------------------------------------------------


class NoAnswerError(Exception):
    """A launcher does not answer, or refuses; the message says which one and why."""


def _places(run: Path, node: str) -> list[Path]:
    """The sockets of launchers in a run directory, or of one of them.

    Raises:
        NoAnswerError: there is none.
    """
    if node:
        return [run / s.file_name(node)]
    places = sorted(run.glob(f"{s.PREFIX}*{s.SUFFIX}"))
    if not places:
        raise NoAnswerError(
            f"{run}: no launcher can be asked here: the run is over, or it runs on other machines"
        )
    return places


def _replies(run: Path, parsed: Parsed[Any], question: s.Question) -> Iterator[s.Answer]:
    """Ask one launcher after the other; who does not answer is said.

    Raises:
        NoAnswerError: nobody has answered.
    """
    answered, problems = False, []
    for place in _places(run, parsed.options.node):
        reply = _ask(place, question)
        if isinstance(reply, str):
            problems.append(reply)
        else:
            answered = True
            yield reply
    if not answered:
        raise NoAnswerError("; ".join(problems))
    for problem in problems:
        print(f"undaunted ctl: {printable(problem)}", file=sys.stderr)


def _ask(place: Path, question: s.Question) -> s.Answer | str:
    """Return the answer of one launcher, or why there is none."""
    name = place.name.removeprefix(s.PREFIX).removesuffix(s.SUFFIX)
    pid = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(ANSWER_S)
        try:
            with s.address_of(place) as address:
                link.connect(address)
            pid = peer(link).pid
            with contextlib.suppress(ConnectionError):  # it may have answered without listening
                link.sendall(encode(msgspec.json.encode(question)))
            answer = msgspec.json.decode(_answer(link), type=s.Answer)
        except (OSError, FrameError, msgspec.MsgspecError) as error:
            return f"node {name}: {_why(error, pid)}"
    return f"node {answer.node}: {answer.error}" if answer.error else answer


def _answer(link: socket.socket) -> bytes:
    decoder, deadline = FrameDecoder(s.MOST_ANSWERED + 4096), time.monotonic() + ANSWER_S
    while data := link.recv(_PIECE):
        link.settimeout(max(0.001, deadline - time.monotonic()))
        decoder.feed(data)
        if (frame := decoder.next()) is not None:
            return frame
    raise ConnectionResetError(0, "it has closed the connection")


def _why(error: Exception, pid: int) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such launcher here; undaunted ctl RUN status shows those that run"
    if isinstance(error, ConnectionRefusedError):
        return "its launcher has ended, or runs on another machine: ask there"
    if isinstance(error, BlockingIOError):
        return "too many others wait for it: try again"
    if not isinstance(error, TimeoutError):
        return getattr(error, "strerror", None) or str(error)
    stopped = process.state(pid) in ("T", "t")
    what = f"is stopped by a signal: kill -CONT {pid}" if stopped else "does not answer"
    return f"its launcher (pid {pid}) {what}; no answer within {ANSWER_S:g} s"


def _body(reply: s.Answer, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(reply.body, type=kind)
    except msgspec.MsgspecError as error:
        raise NoAnswerError(
            f"node {reply.node}: another version of undaunted runs there ({error})"
        ) from None
