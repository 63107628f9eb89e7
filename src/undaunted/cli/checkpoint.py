"""`undaunted checkpoint`: look at checkpoints, verify, compare, delete and export them."""

import errno
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from undaunted.base import values
from undaunted.base.console import plain, table
from undaunted.base.options import Kind, Opt
from undaunted.base.shown import Shown
from undaunted.base.sizes import size
from undaunted.base.streams import take_any_text
from undaunted.base.text import count, format_duration, name_ranks, one_line, printable
from undaunted.base.values import Flag, Text
from undaunted.checkpointing import inspection
from undaunted.checkpointing.errors import CheckpointError, DamagedCheckpointError
from undaunted.checkpointing.format.rules import Rule
from undaunted.cli.command import Command, Parsed, Words
from undaunted.cli.messages import UsageError, json_text, printing

if TYPE_CHECKING:
    from undaunted.checkpointing.content import Contents, Difference
    from undaunted.checkpointing.export import Exported
    from undaunted.checkpointing.inspection import (
        Checkpoint,
        Chosen,
        Damage,
        Listing,
        LocalCheckpoint,
        LocalFiles,
        NamedPlace,
    )

T = TypeVar("T")

_SCHEMA = 1
_DIFFERENT = 1  # exit codes: something is damaged, or differs
_ALL = "all"
_STALL_S = 120.0  # storage that has answered nothing for so long is given up
_DELETION_S = 1800.0  # the same, of a deletion, of which nobody sees how far it is
_STOP_S = 10.0  # for what is being done when somebody interrupts
_THREADS = 8
_MOST_BLOCKS = 8  # of a file, for people
_MOST_NAMES = 8  # in a block, for people
_DEFAULT_PREFIX = "model."
_REMEDIES = {
    errno.EACCES: "Run this as the user who saves, or let the job save with "
    "UNDAUNTED_CHECKPOINT_UMASK=1, so that the umask decides who may read",
    errno.ENOSPC: "Free space there, or name a folder on another disk",
    errno.EDQUOT: "Free space of this user's, or name a folder on another disk",
    errno.EROFS: "It is mounted read-only: name a folder on another disk",
    errno.EIO: "The disk or its server fails: see the kernel's log (dmesg)",
}
_REMEDIES[errno.EPERM] = _REMEDIES[errno.EACCES]


# --- options --------------------------------------------------------------------------------------


class ListOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Options of `undaunted checkpoint list`, `verify`, `show` and `diff`."""

    json: Annotated[Flag, Opt("Print the result as JSON", "Options")] = False


class PruneOptions(ListOptions, kw_only=True, frozen=True):
    """Options of `undaunted checkpoint prune`; 0 = not given."""

    keep: Annotated[
        int, Kind(values.whole(1), "N"), Opt("Keep the newest N", "Retention", shown="required")
    ] = 0
    keep_every: Annotated[
        int,
        Kind(values.whole(1), "M"),
        Opt("Keep those of steps divisible by M as well", shown="none"),
    ] = 0
    dry_run: Annotated[Flag, Opt("Say what would be deleted, and delete nothing", "How")] = False
    quick: Annotated[
        Flag,
        Opt("Take one for whole whose files have their sizes, and do not read the newest one"),
    ] = False
    force: Annotated[
        Flag, Opt("Delete although a job may just be loading one of those that go")
    ] = False


class ExportOptions(ListOptions, kw_only=True, frozen=True):
    """Options of `undaunted checkpoint export`."""

    safetensors: Annotated[
        Text, Opt("Folder that is made, with files of safetensors", "Options", "OUT", "required")
    ] = ""
    prefix: Annotated[
        Text,
        Opt("Export the tensors whose names begin so, without it", metavar="TEXT"),
    ] = _DEFAULT_PREFIX
    shard_size: Annotated[
        int,
        Kind(values.size_from(1 << 20), "SIZE"),
        Opt("Bytes of tensors in one file, at most: 500M, 5G", shown="5 GB"),
    ] = 0


_OPTIONS = {"prune": PruneOptions, "export": ExportOptions}
_OPERANDS = {
    "list": "DIR",
    "verify": f"DIR [STEP|{_ALL}]",
    "show": "DIR [STEP]",
    "diff": "DIR STEP STEP | DIR DIR",
    "prune": "DIR --keep N",
    "export": "DIR [STEP] --safetensors OUT",
}
_ABOUT = {
    "list": "shows which checkpoints there are, and which of them are complete",
    "verify": "reads every byte and says what is damaged, and which tensors are in it",
    "show": "shows the tensors and objects of a checkpoint, with their sizes",
    "diff": "shows in what two checkpoints differ: names, shapes, dtypes, values",
    "prune": "deletes old checkpoints, never the newest one that is whole",
    "export": "writes the tensors of a model as safetensors, for Transformers",
}
_MORE = {
    "list": """\
Of each checkpoint it looks at the manifest and at the sizes of the files; the
content is what verify reads. Strays, unfinished attempts and local checkpoints
are named as well.
""",
    "verify": """\
Without STEP, the newest complete checkpoint. Exits with 1 if something is
damaged. Of local checkpoints the files of this node are read; STEP is their
iteration.
""",
    "show": """\
Without STEP, the newest complete checkpoint. Nothing in the files is executed.
""",
    "diff": """\
Two steps of DIR, or two directories, of which the newest checkpoint counts.
Exits with 1 if they differ.
""",
    "prune": """\
The rule is that of Checkpointer(keep=N, keep_every=M). The newest checkpoint
that is whole stays whatever the rule says: it is read for that, see --quick.
While a job runs that could be loading one of those that go, nothing is deleted.
""",
    "export": """\
Without STEP, the newest complete checkpoint. OUT is there with all its files or
not at all. Transformers loads it once the model's config.json is there, too.
""",
}
ACTIONS: dict[str, Command[Any]] = {
    name: Command(
        f"checkpoint {name}",
        _OPTIONS.get(name, ListOptions),
        f"[OPTIONS] {_OPERANDS[name]}",
        f"{about[0].upper()}{about[1:]}.\n\n{_MORE[name]}",
        operand="DIR",
        more=0 if name in {"list", "prune"} else 2 if name == "diff" else 1,
    )
    for name, about in _ABOUT.items()
}


class _NoOptions(msgspec.Struct, frozen=True):
    """`undaunted checkpoint` itself has none."""


_ACTIONS = "\n".join(f"  {name:<8}  {about}" for name, about in _ABOUT.items())
CHECKPOINT = Command(
    "checkpoint",
    _NoOptions,
    "ACTION [OPTIONS] DIR ...",
    f"""\
Looks at the checkpoints in DIR, and works with them. DIR is what Checkpointer
was given: a directory, or a URL such as s3://bucket/run; or the directory of one
checkpoint, also of one that torch.distributed.checkpoint has saved.

Actions:
{_ACTIONS}

undaunted checkpoint ACTION --help explains an action.
""",
    operand="ACTION",
    is_program=True,
)


def main(argv: Sequence[str]) -> int:
    """Do something with checkpoints.

    Args:
        argv: arguments after ``undaunted checkpoint``.

    Returns:
        0; 1 if something is damaged (verify) or differs (diff); 2 if it could not be done.
    """
    return CHECKPOINT.run(argv, lambda _: _act(CHECKPOINT.sort(argv)))


def _act(words: Words) -> int:
    name = words.target
    if name not in ACTIONS:
        what = f"{name!r} is no action" if name else "an action is missing"
        raise UsageError(f"{what}: choose {', '.join(ACTIONS)}; see --help")
    return ACTIONS[name].run(words.args, lambda parsed: _done(name, parsed))


def _done(name: str, parsed: Parsed[Any]) -> int:
    if not parsed.target:
        raise UsageError(f"name the directory: undaunted checkpoint {name} {_OPERANDS[name]}")
    take_any_text(for_programs=parsed.options.json)
    try:
        return _BODIES[name](parsed)
    except OSError as error:
        raise UsageError(_in_words(error)) from None
    except (CheckpointError, ValueError) as error:
        raise UsageError(one_line(str(error), 2000)) from None
    except ImportError as error:
        raise UsageError(
            f"{name} needs torch, which is not installed here ({error})\n"
            "  Run it in the environment of the job: pip install 'undaunted[torch]'"
        ) from None


def _in_words(error: OSError) -> str:
    where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
    remedy = _REMEDIES.get(error.errno or 0)
    text = f"{where}{error.strerror or error}"
    return f"{text}\n  {remedy}" if remedy else text


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = ([printable(cell) for cell in row] for row in rows)
    return plain(table(heads, cells)).splitlines()


def _print(lines: Iterable[str]) -> None:
    with printing():
        for line in lines:
            sys.stdout.write(f"{printable(line)}\n")


def _print_json(about: dict[str, Any]) -> None:
    with printing():
        sys.stdout.write(json_text({"schema": _SCHEMA, **about}))


# --- work that may take long ----------------------------------------------------------------------


class _Stopped(Exception):  # noqa: N818 - the user wants it
    """The user has interrupted, or storage does not answer."""


class _Work:
    """What is being done: shows how far it is, and ends it if somebody interrupts.

    The work has a separate thread, as a disk that hangs does not give a thread back.
    """

    def __init__(self, text: str, stall_s: float = _STALL_S) -> None:
        self._text = text
        self._stall_s = stall_s
        self._shown = Shown(text)
        self._last = time.monotonic()
        self._stopped = False

    def expect(self, count_bytes: int) -> None:
        """Say how many more bytes there will be."""
        self._shown.expect(count_bytes)

    def advance(self, count_bytes: int) -> None:
        """Say that so many more bytes are done; ends the work that is to stop."""
        if self._stopped:
            raise _Stopped
        self._last = time.monotonic()
        self._shown.advance(count_bytes)

    def looked(self) -> None:
        """Say that the storage has answered."""
        self.advance(0)

    def run(self, body: Callable[["_Work"], T]) -> T:
        """Return what the body returns, or raise what it raises.

        Raises:
            TimeoutError: storage has not answered for long.
        """
        results: list[T] = []
        errors: list[BaseException] = []
        done = threading.Event()

        def run() -> None:
            try:
                results.append(body(self))
            except BaseException as error:  # noqa: BLE001 - raised below
                errors.append(error)
            finally:
                done.set()

        thread = threading.Thread(target=run, name="undaunted-checkpoint", daemon=True)
        with self._shown:
            thread.start()
            try:
                while not done.wait(max(0.0, self._last + self._stall_s - time.monotonic())):
                    if time.monotonic() - self._last >= self._stall_s:
                        self._stopped = True
                        raise TimeoutError(
                            errno.ETIMEDOUT,
                            f"{self._text}: the storage has not answered for "
                            f"{format_duration(self._stall_s)}; see whether its server or mount "
                            "is there",
                        )
            except KeyboardInterrupt:
                self._stopped = True
                done.wait(_STOP_S)
                raise
        if errors:
            raise errors[0]
        return results[0]


# --- list -----------------------------------------------------------------------------------------


def _list(parsed: Parsed[ListOptions]) -> int:
    where = parsed.target
    found = _Work(f"looking at {where}").run(lambda work: inspection.list_all(where, work.looked))
    if parsed.options.json:
        _print_json(msgspec.to_builtins(found))
    else:
        _print(_listing(found, time.time()))
    return 0


def _listing(found: "Listing", now: float) -> Iterator[str]:
    if found.kind == "dcp":
        yield (
            f"{found.place} is one checkpoint of torch.distributed.checkpoint.save: it has no "
            "checksums"
        )
        return
    if found.kind == "local":
        yield from _local_listing(found, now)
        return
    if not found.checkpoints:
        yield f"{found.place} has no checkpoint yet"
    else:
        rows = [
            (
                str(one.step),
                "-" if one.saved_at is None else format_duration(max(0.0, now - one.saved_at)),
                "-" if one.size is None else size(one.size),
                "-" if one.ranks is None else str(one.ranks),
                _state(one),
            )
            for one in found.checkpoints
        ]
        yield from _table(("STEP", "AGE", "SIZE", "RANKS", "STATE"), rows)
    if found.strays or found.kept_aside or found.unfinished:
        yield ""
        yield "beside them:"
    for stray, why in zip(found.strays, found.stray_problems, strict=True):
        yield f"  {one_line(stray)}: {why}"
    yield from _kept_aside(found)
    for left in found.unfinished:
        yield f"  {left.name}: {_KINDS[left.kind]}, {size(left.size)}; {_LIVES[left.alive]}"
    for session in found.jobs:
        if session.alive:
            of = f"run {one_line(session.run)}" if session.run else "a job without a launcher"
            yield f"  {of} has these checkpoints open"


def _kept_aside(found: "Listing") -> Iterator[str]:
    for one in found.kept_aside:
        yield (
            f"  {one_line(one.name)}: kept aside, {size(one.size)}; it led to failures, and its "
            "step was saved again"
        )


def _state(one: "Checkpoint") -> str:
    if not one.complete:
        return f"cannot be used: {one_line(one.problem)}"
    state = "complete, certified" if one.certified else "complete"
    return f"{state}, but passed over: {one_line(one.doubt)}" if one.doubt else state


_KINDS = {
    "unfinished": "a save that is not finished",
    "replaced": "the former content of a step that was saved again",
    "deleted": "what is left of a deletion",
}
_LIVES = {
    True: "it may still be written: its job runs, or writes its last copy",
    False: "its job is over: the next one that saves here removes it",
    None: "the next job that saves here removes it when its own is over",
}


def _local_listing(found: "Listing", now: float) -> Iterator[str]:
    yield f"local checkpoints on this node, in {found.place}:"
    rows = [
        (
            str(one.iteration),
            one_line(one.session) or "-",
            format_duration(max(0.0, now - one.saved_at)),
            size(one.size),
            str(one.ranks),
            _local_state(one),
        )
        for one in found.local
    ]
    yield from _table(("ITERATION", "RUN", "AGE", "SIZE", "RANKS", "STATE"), rows)
    for problem in found.problems:
        yield f"  {one_line(problem)}"
    yield from _kept_aside(found)


def _local_state(one: "LocalCheckpoint") -> str:
    missing = sorted({*range(one.ranks)} - {*one.found})
    if not missing:
        return "complete on this node"
    return f"has {name_ranks(one.found)}; {name_ranks(missing)} must be on other nodes"


# --- verify ---------------------------------------------------------------------------------------


class _Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What verifying one checkpoint has found."""

    step: int | None
    path: str
    whole: bool
    size: int = 0
    ranks: int = 0
    damage: list[inspection.Damage] = []


def _verify(parsed: Parsed[ListOptions]) -> int:
    where, (wanted,) = parsed.target, _operands(parsed, 1)

    def targets(work: _Work) -> "tuple[NamedPlace, list[int | None]]":
        place = inspection.open_place(where)
        if place.kind == "local":
            return place, []
        if wanted != _ALL or place.storage is None:
            return place, [None if wanted in {"", _ALL} else _step(wanted)]
        listed = inspection.list_checkpoints(place, work.looked)
        if not listed:
            raise CheckpointError(f"{where} has no checkpoints")
        return place, [one.step for one in listed]

    place, steps = _Work(f"looking at {where}").run(targets)
    if place.kind == "local":
        return _verify_local(parsed, place, wanted)
    verdicts = []
    for step in steps:
        verdict = _verified(place, step)
        verdicts.append(verdict)
        if not parsed.options.json:
            _print(_verdict_lines(verdict))
    if parsed.options.json:
        _print_json({"checkpoints": msgspec.to_builtins(verdicts)})
    if all(verdict.whole for verdict in verdicts):
        return 0
    if not parsed.options.json and place.storage is not None:
        _print(["a load passes over what is damaged, and takes the next older checkpoint"])
    return _DIFFERENT


def _verified(place: "NamedPlace", step: int | None) -> _Verdict:
    try:
        chosen = _Work(f"looking at {place.path}").run(
            lambda work: inspection.choose(place, step, work.looked)
        )
    except DamagedCheckpointError as error:
        found = inspection.Damage(file="", problem=str(error))
        return _Verdict(step=step, path=error.path, whole=False, damage=[found])
    manifest = chosen.manifest
    total = inspection.bytes_of(manifest) if manifest is not None else 0

    def check(work: _Work) -> "list[Damage]":
        work.expect(total)
        return _named(chosen, inspection.check(chosen, _THREADS, work.advance))

    damage = _Work(f"verifying {chosen.path}").run(check)
    return _Verdict(
        step=manifest.step if manifest is not None else None,
        path=chosen.path,
        whole=not damage,
        size=total,
        ranks=manifest.world_size if manifest is not None else 0,
        damage=damage,
    )


class _LocalVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What verifying the files of one iteration on this node has found."""

    iteration: int
    whole: bool
    saves: list[inspection.LocalCheckpoint]
    damage: list[inspection.Damage] = []


def _verify_local(parsed: Parsed[ListOptions], place: "NamedPlace", wanted: str) -> int:
    iteration = None if wanted in {"", _ALL} else _step(wanted)
    found = _Work(f"looking at {place.path}").run(
        lambda work: inspection.local_files(place, iteration, work.looked)
    )
    verdicts = []
    for one in found if wanted == _ALL else found[:1]:
        verdict = _verified_local(place, one)
        verdicts.append(verdict)
        if not parsed.options.json:
            _print(_local_verdict_lines(verdict))
    if parsed.options.json:
        _print_json({"local": msgspec.to_builtins(verdicts)})
    if all(verdict.whole for verdict in verdicts):
        return 0
    if not parsed.options.json:
        _print(["a load takes a copy that is whole, or else the next older checkpoint"])
    return _DIFFERENT


def _verified_local(place: "NamedPlace", one: "LocalFiles") -> _LocalVerdict:
    files = [file for _, files in one.saves for file in files]

    def check(work: _Work) -> "list[Damage]":
        work.expect(sum(file.image_bytes for file in files))
        return inspection.check_local(place, files, _THREADS, work.advance)

    damage = _Work(f"verifying iteration {one.iteration}").run(check)
    damage = [*one.broken, *damage]
    saves = [save for save, _ in one.saves]
    return _LocalVerdict(iteration=one.iteration, whole=not damage, saves=saves, damage=damage)


def _local_verdict_lines(verdict: _LocalVerdict) -> Iterator[str]:
    parts = "; ".join(
        f"{_local_state(save)} ({count(save.files, 'file')}, {size(save.size)})"
        for save in verdict.saves
    )
    whole = "whole" if verdict.whole else "damaged"
    yield f"iteration {verdict.iteration}: {whole}{f', {parts}' if parts else ''}"
    yield from _damage_lines(verdict.damage)


def _named(chosen: "Chosen", damage: "list[Damage]") -> "list[Damage]":
    """Add the names of tensors, if torch is here and the metadata can be read."""
    if not any(one.file for one in damage):
        return damage
    try:
        from undaunted.checkpointing.content import Contents

        return Contents(chosen).named(damage)
    except (ImportError, CheckpointError, OSError):
        return damage


def _verdict_lines(verdict: _Verdict) -> Iterator[str]:
    name = verdict.path if verdict.step is None else f"step {verdict.step}"
    if verdict.whole:
        yield f"{name}: whole ({count(verdict.ranks, 'rank')}, {size(verdict.size)})"
        return
    yield f"{name}: damaged"
    yield from _damage_lines(verdict.damage)


def _damage_lines(found: "Sequence[Damage]") -> Iterator[str]:
    for file, damage in groupby(found, lambda one: one.file):
        some = list(damage)
        for one in some[:_MOST_BLOCKS]:
            at = ""
            if one.block is not None:
                at = f"block {one.block} (bytes {one.start} to {one.end}) "
            yield f"  {f'{file}: ' if file else ''}{at}{one_line(one.problem)}{_has(one.names)}"
        if len(some) > _MOST_BLOCKS:
            yield f"  {file}: {len(some) - _MOST_BLOCKS} more blocks; see --json"


def _has(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"; has {', '.join(names[:_MOST_NAMES])}{more}" if names else ""


# --- show, diff -----------------------------------------------------------------------------------


def _show(parsed: Parsed[ListOptions]) -> int:
    where, (wanted,) = parsed.target, _operands(parsed, 1)
    _need_torch()
    contents = _Work(f"looking at {where}").run(lambda work: _contents(where, wanted, work))
    tensors, objects = contents.tensors, contents.objects
    if parsed.options.json:
        about = {"path": contents.path, "tensors": tensors, "objects": objects}
        _print_json(msgspec.to_builtins(about))
        return 0
    total = sum(one.size for one in tensors)
    _print([f"{contents.path}: {count(len(tensors), 'tensor')}, {size(total)}", ""])
    rows = [
        (one.name, one.dtype, _shape(one.shape), str(one.size), str(one.parts)) for one in tensors
    ]
    _print(_table(("TENSOR", "DTYPE", "SHAPE", "BYTES", "PARTS"), rows))
    if objects:
        rows_ = [(one.name, str(one.size)) for one in objects]
        _print(["", *_table(("OBJECT", "BYTES IN THE FILE"), rows_)])
    return 0


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "()"


def _need_torch() -> None:
    """Import it before any storage is waited for: that may take long, too."""
    import undaunted.checkpointing.content  # noqa: F401


def _contents(where: str, wanted: str, work: _Work) -> "Contents":
    from undaunted.checkpointing.content import Contents

    step = _step(wanted) if wanted else None
    chosen = inspection.choose(inspection.open_place(where), step, work.looked)
    return Contents(chosen, _THREADS, work.advance)


def _diff(parsed: Parsed[ListOptions]) -> int:
    second, third = _operands(parsed, 2)
    if not second:
        raise UsageError(f"name two: undaunted checkpoint diff {_OPERANDS['diff']}")
    sides = [(parsed.target, second), (parsed.target, third)]
    if not third:
        sides = [(parsed.target, ""), (second, "")]

    def compare(work: _Work) -> "tuple[list[str], list[Difference]]":
        contents = [_contents(where, wanted, work) for where, wanted in sides]
        from undaunted.checkpointing.content import compared_bytes, differences

        work.expect(compared_bytes(*contents))
        return [one.path for one in contents], list(differences(*contents))

    _need_torch()
    paths, found = _Work(f"comparing {parsed.target}").run(compare)
    if parsed.options.json:
        about = {"first": paths[0], "second": paths[1], "differences": found}
        _print_json(msgspec.to_builtins(about))
    else:
        _print(_differences(paths, found))
    return _DIFFERENT if found else 0


def _differences(paths: Sequence[str], found: "Sequence[Difference]") -> Iterator[str]:
    yield f"first   {paths[0]}"
    yield f"second  {paths[1]}"
    yield ""
    if not found:
        yield "they have the same names, shapes, dtypes and values"
        return
    rows = [(one.name, one.what, _apart(one)) for one in found]
    yield from _table(("NAME", "DIFFERS IN", "HOW"), rows)


def _apart(one: "Difference") -> str:
    if one.what == "missing":
        side = "first" if one.first else "second"
        return f"only in the {side}: {one.first or one.second}"
    sides = f"{one.first}, then {one.second}" if one.first != one.second else one.first
    if one.what != "values":
        return sides
    largest = "" if one.largest is None else f"the largest difference is {one.largest:.6g}"
    return "; ".join(filter(None, (sides, largest))) or "not all values are finite, or not numbers"


# --- prune ----------------------------------------------------------------------------------------


def _prune(parsed: Parsed[PruneOptions]) -> int:
    options, where = parsed.options, parsed.target
    if not options.keep:
        raise UsageError("say how many of the newest stay: --keep N")
    rule = Rule(keep=options.keep, every=options.keep_every or None, certified=1)

    def plan(work: _Work) -> "tuple[NamedPlace, inspection.Deletion, str]":
        place = inspection.open_place(where)
        if place.storage is None:
            raise CheckpointError(f"{place.path} is not a place of several checkpoints")

        def is_whole(step: int) -> bool:
            if options.quick:
                return True
            chosen = inspection.choose(place, step)
            if chosen.manifest is not None:
                work.expect(inspection.bytes_of(chosen.manifest))
            return not inspection.check(chosen, _THREADS, work.advance)

        found = inspection.plan_deletion(place.storage, rule, is_whole, work.looked)
        return place, found, inspection.who_may_load(place.storage, found.whole)

    place, found, hindrance = _Work(f"verifying the newest checkpoint of {where}").run(plan)
    assert place.storage is not None
    steps = [one.step for one in found.delete]
    if hindrance and steps and not (options.force or options.dry_run):
        raise UsageError(
            f"nothing was deleted: {hindrance}\n"
            "  Wait until it has saved, or give --force if you know that it does not load them"
        )
    deleted = [] if options.dry_run else [step for step in steps if _delete(place, step)]
    if options.json:
        about = {"dry_run": options.dry_run, "delete": steps, "deleted": deleted}
        about |= {"keep": found.keep, "whole": found.whole.step, "damaged": found.damaged}
        _print_json(about)
    else:
        _print(_pruned(found, dry_run=options.dry_run))
    return 0


def _delete(place: "NamedPlace", step: int) -> bool:
    """Delete a checkpoint; return False if somebody else has."""
    storage = place.storage
    assert storage is not None
    try:
        _Work(f"deleting step {step}", _DELETION_S).run(lambda _: storage.delete(step))
    except FileNotFoundError:
        return False
    return True


def _pruned(found: "inspection.Deletion", *, dry_run: bool) -> Iterator[str]:
    for step in found.damaged:
        yield f"step {step} is damaged; see undaunted checkpoint verify"
    kept = ", ".join(map(str, found.keep))
    if not found.delete:
        yield f"nothing to delete; kept: {kept}"
        return
    freed = sum(one.size or 0 for one in found.delete)
    what = ", ".join(str(one.step) for one in found.delete)
    yield f"{'would delete' if dry_run else 'deleted'}: {what} ({size(freed)})"
    yield f"{'would keep' if dry_run else 'kept'}: {kept}"


# --- export ---------------------------------------------------------------------------------------


def _export(parsed: Parsed[ExportOptions]) -> int:
    options, where, (wanted,) = parsed.options, parsed.target, _operands(parsed, 1)
    if not options.safetensors:
        raise UsageError("say where to: --safetensors OUT")

    def write(work: _Work) -> "tuple[str, Exported, str]":
        contents = _contents(where, wanted, work)
        from undaunted.checkpointing.export import SHARD_BYTES, export, select

        selection = select(contents, options.prefix)
        work.expect(2 * selection.size)  # which are read and written
        shard_bytes = options.shard_size or SHARD_BYTES
        done = export(contents, selection, options.safetensors, shard_bytes, work.advance)
        return contents.path, done, _wrapper(selection.tensors)

    _need_torch()
    path, done, wrapper = _Work(f"exporting {where}").run(write)
    if options.json:
        about = {"path": path, "out": options.safetensors, **done._asdict()}
        _print_json(about)
        return 0
    what = f"{count(done.tensors, 'tensor')}, {size(done.size)}, {count(len(done.files), 'file')}"
    lines = [f"exported {path} to {options.safetensors}: {what}"]
    if done.left_out:
        lines.append(f"left out, as they are no tensors{_has(done.left_out)}")
    if wrapper:
        prefix = shlex.quote(f"{options.prefix}{wrapper}")
        lines.append(f"all names begin with {wrapper}: to leave it out, give --prefix {prefix}")
    _print(lines)
    return 0


def _wrapper(names: Iterable[str]) -> str:
    """Return what a wrapper of the model has put before all names, "" = nothing."""
    for word in ("module.", "_orig_mod.", "_fsdp_wrapped_module."):
        if all(name.startswith(word) for name in names):
            return word
    return ""


# --- operands -------------------------------------------------------------------------------------


def _operands(parsed: Parsed[Any], most: int) -> list[str]:
    """Return the operands after the first, "" for those that were not given."""
    return [*parsed.args, *[""] * most][:most]


def _step(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 20:
        return int(text)
    raise UsageError(f"{text!r} is no step: give a number")


_BODIES: dict[str, Callable[[Parsed[Any]], int]] = {
    "list": _list,
    "verify": _verify,
    "show": _show,
    "diff": _diff,
    "prune": _prune,
    "export": _export,
}
