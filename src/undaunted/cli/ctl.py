"""`undaunted ctl`: ask a running job, and tell it what to do."""

import os
import shlex
import ssl
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from undaunted.base import values
from undaunted.base.options import Kind, Opt
from undaunted.base.streams import take_any_text
from undaunted.base.text import count, format_duration, format_ranks, printable
from undaunted.base.values import Flag, Limit, OptionalFile
from undaunted.cli.asking import Here, Launchers, NoAnswerError, There, ask, body_of
from undaunted.cli.command import Command, Parsed, Words
from undaunted.cli.messages import UsageError, json_text, printing
from undaunted.coordinator.wire.address import Address, parse_address
from undaunted.coordinator.wire.credentials import TlsError, TokenError, client_context, find_token
from undaunted.fault_tolerance import control_socket as s
from undaunted.fault_tolerance.job_access import own_token_file
from undaunted.journal.reader import DEFAULT_RUNS, newest_run

T = TypeVar("T")

_REFUSED = 1  # exit code: a launcher has said no, or nobody has answered


# --- options --------------------------------------------------------------------------------------


class CtlOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Options of `undaunted ctl` and of all its actions: they may stand before the action."""

    json: Annotated[Flag, Opt("Print the answer as JSON", "Options")] = False
    node: Annotated[
        str,
        Kind(lambda text: text if text == s.COORDINATOR else values.node_name(text), "NAME"),
        Opt(
            "Ask this launcher only; an order is for the whole job, whichever launcher gets it",
            shown="all, or for an order the leader",
        ),
    ] = ""
    token_file: Annotated[
        OptionalFile,
        Opt(
            "File, mode 0600, with the job's token",
            "For HOST:PORT",
            shown="UNDAUNTED_TOKEN, else ~/.config/undaunted/token",
        ),
    ] = None
    tls_ca: Annotated[OptionalFile, Opt("Authorities, where launchers use TLS")] = None
    tls_cert: Annotated[OptionalFile, Opt("A certificate of this side")] = None
    tls_key: Annotated[OptionalFile, Opt("Key of that certificate")] = None


class _LimitsOnly(msgspec.Struct, frozen=True):
    """What `limits` shows of `NodeStatus`."""

    limits: list[s.LimitStatus] = []


class StacksOptions(CtlOptions, kw_only=True, frozen=True):
    """Options of `undaunted ctl stacks`."""

    rank: Annotated[
        int, Kind(values.whole(0), "N"), Opt("Of one rank only", "Ranks", shown="all")
    ] = -1


class StopOptions(CtlOptions, kw_only=True, frozen=True):
    """Options of `undaunted ctl stop`, `restart` and `exclude`."""

    after_checkpoint: Annotated[
        Flag,
        Opt(
            "Let the ranks save before: those of a Session stop after the same iteration, others "
            "get SIGTERM, within --term-timeout; otherwise they are killed after 15 s",
            "How",
        ),
    ] = False


class LimitsOptions(CtlOptions, kw_only=True, frozen=True):
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
    "status": "shows what runs, who leads the job, which limits are in force",
    "stacks": "shows what every rank does: stacks of all threads; nothing is ended",
    "flight": "says who keeps the others waiting, by torch's Flight Recorders",
    "restart": "stops the round, begins another; costs none of --max-restarts",
    "stop": "ends the job",
    "exclude": "goes on without NODE, if a spare one is there or enough are left",
    "limits": "shows the limits, or holds all ranks to others; `none` turns one off",
    "dump": "shows the last events and commands of each state machine",
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
        _OPTIONS.get(name, CtlOptions),
        "[OPTIONS] NODE" if name == "exclude" else "[OPTIONS]",
        f"{about[0].upper()}{about[1:]}.\n",
        operand="NODE" if name == "exclude" else "RUN",  # which is refused below
    )
    for name, about in _ABOUT.items()
}


_ACTIONS = "\n".join(f"  {name:<8}  {about}" for name, about in _ABOUT.items())
CTL = Command(
    "ctl",
    CtlOptions,
    "[RUN] ACTION [OPTIONS]",
    f"""\
Asks the running launchers of RUN, or tells them what to do. RUN is the
directory of a run, with launchers on this machine; without it, the newest one
under ./{DEFAULT_RUNS}. Or it is HOST:PORT, for a job of several nodes: the
--rdzv-endpoint, or where any of its launchers listens; from any machine.

Actions:
{_ACTIONS}

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
    return CTL.run(argv, lambda _: _act(CTL.sort(argv)))


def _act(words: Words) -> int:
    """Find RUN and the action; what stands before the action is an option of it."""
    run, given = "", words.given
    if words.target and words.target not in ACTIONS:
        run, words = words.target, CTL.sort(words.args)
        given = given | words.given
    name = words.target
    if name not in ACTIONS:
        what = f"{name or run!r} is no action" if name or run else "an action is missing"
        raise UsageError(f"{what}: choose {', '.join(ACTIONS)}; see --help")
    is_flag = {option.name: not option.metavar for option in CTL.options}
    before = [f"--{n}" if is_flag[n] else f"--{n}={texts[-1]}" for n, texts in given.items()]
    return ACTIONS[name].run([*before, *words.args], lambda parsed: _answered(name, run, parsed))


def _answered(action: str, run: str, parsed: Parsed[Any]) -> int:
    if parsed.target and action != "exclude":
        right = f"undaunted ctl {shlex.quote(str(run or parsed.target))} {action}"
        raise UsageError(f"unexpected {parsed.target!r}: RUN comes before the action: {right}")
    try:
        return _BODIES[action](_launchers(run, parsed), parsed)
    except NoAnswerError as error:
        print(f"undaunted ctl {action}: {printable(str(error))}", file=sys.stderr)
        return _REFUSED


def _launchers(run: str, parsed: Parsed[Any]) -> Launchers:
    found = Path(run) if run else newest_run()
    if found is None:
        raise UsageError(f"no run under ./{DEFAULT_RUNS}; name its directory: undaunted ctl RUN")
    if os.path.isdir(found):  # noqa: PTH112 - Path's raises where a name is too long
        return Here(found)
    try:
        address = parse_address(run)
    except ValueError:
        address = Address("", 0)
    if address.is_unix or not (address.host and address.port):
        raise UsageError(
            f"{run} is no directory, nor HOST:PORT; `undaunted run` prints the directory when a "
            "run starts"
        )
    return There(run, _token(parsed.options.token_file), _tls(parsed.options))


def _token(path: Path | None) -> bytes:
    """The job's token, as launchers find it; none is made here."""
    try:
        if found := find_token(os.environ, path):
            return found
        own = own_token_file()
        return find_token({}, own) if own.exists() else b""
    except (TokenError, OSError, RuntimeError) as error:
        raise UsageError(str(error)) from None


def _tls(options: CtlOptions) -> ssl.SSLContext | None:
    if options.tls_ca is None and options.tls_cert is None and options.tls_key is None:
        return None
    if options.tls_ca is None:
        raise UsageError("--tls-cert and --tls-key are of use only with --tls-ca")
    try:
        return client_context(options.tls_ca, options.tls_cert, options.tls_key)
    except TlsError as error:
        raise UsageError(str(error)) from None


# --- what is asked --------------------------------------------------------------------------------


def _status(launchers: Launchers, parsed: Parsed[Any]) -> int:
    return _show(parsed, _asked(launchers, parsed, s.Status(), s.NodeStatus), _status_lines)


def _stacks(launchers: Launchers, parsed: Parsed[Any]) -> int:
    found, rank = _asked(launchers, parsed, s.Stacks(), list[s.RankStacks]), parsed.options.rank
    if rank >= 0:
        there = sorted(each.rank for ranks in found.values() for each in ranks)
        chosen = {node: [one for one in ranks if one.rank == rank] for node, ranks in found.items()}
        if not (found := {node: ranks for node, ranks in chosen.items() if ranks}):
            raise NoAnswerError(
                f"there is no rank {rank} here, but {_ranks(there) if there else 'none'}"
            )
    return _show(parsed, found, _stacks_lines)


def _flight(launchers: Launchers, parsed: Parsed[Any]) -> int:
    from undaunted.attribution.flight.culprits import analyse
    from undaunted.attribution.flight.files import Dumps
    from undaunted.cli.flight import lines_of

    answers = _asked(launchers, parsed, s.Flight(), list[s.RankRecording])
    said = [each for body in answers.values() for each in body]
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
    _print([*text, *_idle(answers)])
    return 0


def _dump(launchers: Launchers, parsed: Parsed[Any]) -> int:
    lines = _asked(launchers, parsed, s.Dump(), list[msgspec.Raw])
    if parsed.options.json:
        _print_json(lines)
    else:
        _print(bytes(line).decode() for node in lines.values() for line in node)
    return 0


def _limits(launchers: Launchers, parsed: Parsed[Any]) -> int:
    options = parsed.options
    names = ("heartbeat", "initial_heartbeat", "out_of_section")
    chosen = [name for name in names if parsed.is_given(name.replace("_", "-"))]
    given = {name: getattr(options, name) for name in chosen}
    given |= {f"section:{name}": seconds for name, seconds in options.sections.items()}
    if not given:
        return _show(parsed, _asked(launchers, parsed, s.Status(), _LimitsOnly), _limit_lines)
    if len(given) > s.MOST_LIMITS:
        raise UsageError(
            f"--sections: {len(given)} limits are too many at a time; give {s.MOST_LIMITS}, and "
            "the others in another call: limits add up"
        )
    if long := [name for name in options.sections if len(name) > s.LONGEST_SECTION]:
        raise UsageError(
            f"--sections: the name {long[0][:20]}... has {len(long[0])} characters; sections have "
            f"at most {s.LONGEST_SECTION}"
        )
    return _order(launchers, parsed, s.Limits(limits=given))


def _exclude(launchers: Launchers, parsed: Parsed[Any]) -> int:
    if not parsed.target:
        raise UsageError("name the node: undaunted ctl RUN exclude NODE; status shows them")
    order = s.Exclude(target=parsed.target, save=parsed.options.after_checkpoint)
    return _order(launchers, parsed, order)


_BODIES: dict[str, Callable[[Launchers, Parsed[Any]], int]] = {
    "status": _status,
    "stacks": _stacks,
    "flight": _flight,
    "restart": lambda to, parsed: _order(
        to, parsed, s.Restart(save=parsed.options.after_checkpoint)
    ),
    "stop": lambda to, parsed: _order(to, parsed, s.Stop(save=parsed.options.after_checkpoint)),
    "exclude": _exclude,
    "limits": _limits,
    "dump": _dump,
}


def _asked(
    launchers: Launchers, parsed: Parsed[Any], question: s.Question, kind: type[T]
) -> dict[str, T]:
    """Ask every launcher, or that of --node; return what they answer, by node."""
    answers = ask(launchers, parsed.options.node, question)
    return {answer.node: body_of(answer, kind) for answer in answers}


def _show(parsed: Parsed[Any], bodies: dict[str, T], lines: Callable[[T], Iterable[str]]) -> int:
    if parsed.options.json:
        _print_json(bodies)
        return 0
    texts = {node: list(lines(body)) for node, body in bodies.items()}
    for node, text in texts.items():
        if text and len(texts) > 1:
            text.insert(0, f"=== node {node} ===")
    _print([*chain.from_iterable(texts.values()), *_idle(texts)])
    return 0


def _idle(answers: Mapping[str, Sized]) -> list[str]:
    nodes = [node for node, answer in answers.items() if not answer]
    ask_all = "; undaunted ctl HOST:PORT asks all nodes" if nodes == [s.COORDINATOR] else ""
    return [f"no ranks run on {', '.join(nodes)}{ask_all}"] if nodes else []


def _order(launchers: Launchers, parsed: Parsed[Any], order: s.Order) -> int:
    """Tell one launcher, which tells the leader of the job."""
    (answer,) = ask(launchers, parsed.options.node, order)
    decision = body_of(answer, s.Decision)
    if parsed.options.json:
        _print_json({"node": answer.node, **msgspec.to_builtins(decision)})
    else:
        _print([decision.line])
    return 0 if decision.done else _REFUSED


# --- for people -----------------------------------------------------------------------------------


def _status_lines(status: s.NodeStatus) -> Iterator[str]:
    job = status.job
    then = f" ({job.then})" if job.then else ""
    about = f"{_round(job.round)}, {job.state}{then}{_pause(job)}{_restarts(job)}"
    yield f"job       {status.run_id}, {about}"
    if job.role != "alone":
        at = f" at {job.leader_address}" if job.leader_address else ""
        yield f"leader    {job.leader or 'not known'}{at}, epoch {job.epoch}"
    for member in job.members:
        yield f"member    {member.node}: {_ranks(member.ranks)}{_standing(member)}"
    if job.lease_left_s is not None and job.heard_s is not None:
        left = f"{job.lease_left_s:.1f} s left of {job.lease_s:g} s"
        over = f"over: the leader was last heard of {format_duration(job.heard_s)} ago"
        yield f"lease     {left if job.lease_left_s > 0 else over}"
    if job.role != "alone":
        spares = "only the leader knows" if job.spares is None else ", ".join(job.spares) or "none"
        yield f"spares    {spares}"
    for node, reason in job.excluded.items():
        yield f"excluded  {node}: {reason}"
    what = f"{status.state}, {_round(status.round)}, pid {status.pid}, undaunted {status.version}"
    yield f"node      {status.node} ({job.role}): {what}"
    for rank in status.ranks:
        yield f"rank      {rank.rank}: {_rank(rank)}"
    for line in _limit_lines(status):
        yield f"limit     {line}"


def _limit_lines(status: s.NodeStatus | _LimitsOnly) -> Iterator[str]:
    all_ranks = {rank for limit in status.limits for rank in limit.ranks}
    for limit in status.limits:
        seconds = "off" if limit.seconds is None else format_duration(limit.seconds)
        held = "" if len(limit.ranks) == len(all_ranks) else f", {_ranks(limit.ranks)}"
        yield f"{limit.name}: {seconds} ({limit.source}{held})"


def _round(number: int) -> str:
    return "no round yet" if number < 0 else f"round {number}"


def _pause(job: s.JobStatus) -> str:
    if (left_s := job.pause_left_s) is None:
        return ""
    until = time.strftime("%H:%M:%S", time.localtime(time.time() + left_s))
    return f", pauses until {until} ({left_s:.1f} s more; restart ends the pause)"


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
