"""A look at checkpoints from outside of training: which there are, and whether each is whole.

Nothing here needs torch, and nothing is changed but by `delete`.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from undaunted.base.text import count, one_line
from undaunted.checkpointing.errors import (
    CheckpointError,
    DamagedCheckpointError,
    NoCheckpointError,
)
from undaunted.checkpointing.files.direct import DirectReader
from undaunted.checkpointing.files.folder import OneFolder
from undaunted.checkpointing.files.objects import ObjectStorage
from undaunted.checkpointing.files.places import open_storage
from undaunted.checkpointing.files.reading import check_blocks
from undaunted.checkpointing.finding import candidate
from undaunted.checkpointing.format import ledger, names, rules
from undaunted.checkpointing.format import manifest as manifests
from undaunted.checkpointing.format.manifest import File
from undaunted.checkpointing.local import folder as shards
from undaunted.checkpointing.local import shard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from undaunted.checkpointing.files.storage import FileReader, Storage
    from undaunted.checkpointing.format.manifest import Manifest
    from undaunted.checkpointing.local.folder import ShardFile

_NAMED = 5  # steps or directories that a message names
_PEEKED = 1000  # directories that are looked into for a hint

Kind = Literal["checkpoints", "one", "dcp", "local"]


@dataclass(frozen=True)
class NamedPlace:
    """The place that a user has named.

    Attributes:
        kind: a place of many checkpoints; one checkpoint of ours in a folder of its own; a folder
            of `torch.distributed.checkpoint.save`; a place of local checkpoints.
        path: the folder or URL.
        storage: of many checkpoints, else None.
    """

    kind: Kind
    path: str
    storage: Storage | None = None


class Chosen(NamedTuple):
    """One checkpoint to look at.

    Attributes:
        path: of it, for messages.
        manifest: of it; None = torch has written it, so that there are no checksums.
        storage: has its files; None without a manifest.
    """

    path: str
    manifest: Manifest | None = None
    storage: Storage | OneFolder | None = None


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A committed checkpoint as a list shows it.

    Attributes:
        step: of training.
        path: folder or URL.
        complete: all files are there with their sizes. Their content was not read.
        problem: why it is not complete, or "".
        saved_at: seconds since 1970. This, and all that follows, is None if the manifest is
            damaged.
        size: bytes.
        ranks: that saved it.
        session: of the job that saved it.
        certified: replicas were compared before it was saved, and were the same.
        loads: rounds of jobs that have loaded it, as far as the ledger goes back.
        doubt: why jobs pass it over for an older one, or "".
    """

    step: int
    path: str
    complete: bool
    problem: str = ""
    saved_at: float | None = None
    size: int | None = None
    ranks: int | None = None
    session: str | None = None
    certified: bool = False
    loads: int = 0
    doubt: str = ""


class LocalCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a local checkpoint on one node.

    Attributes:
        session: the user's name of the run.
        iteration: of training.
        save: names the save.
        saved_at: seconds since 1970.
        ranks: that saved.
        found: the ranks whose parts are here.
        files: copies are counted as well.
        size: bytes of all files.
    """

    session: str
    iteration: int
    save: str
    saved_at: float
    ranks: int
    found: list[int]
    files: int
    size: int


class LeftoverEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The rest of a save or deletion, or one that is about to finish; see `storage.Leftover`."""

    name: str
    step: int
    kind: str
    size: int
    alive: bool | None


class KeptAsideEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that led to failures and whose step was saved again.

    Attributes:
        name: relative to the place; a folder, a shard of a local checkpoint, or, in an object
            store, a manifest.
        step: that it was.
        size: bytes.
    """

    name: str
    step: int
    size: int


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job that has or had a place open; see `living.Session`."""

    session: str
    run: str
    alive: bool | None


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """All that is at a place.

    Attributes:
        place: folder or URL.
        kind: see `NamedPlace`.
        checkpoints: the one that was committed last first.
        strays: paths of what is called like a checkpoint and is none.
        stray_problems: why each of them is none.
        kept_aside: checkpoints that led to failures, under their new names.
        unfinished: what saves and deletions have left, or are about to finish.
        jobs: that have or had the place open, as far as this can be known.
        local: local checkpoints.
        problems: why files of local checkpoints do not count.
    """

    place: str
    kind: str
    checkpoints: list[Checkpoint] = []
    strays: list[str] = []
    stray_problems: list[str] = []
    kept_aside: list[KeptAsideEntry] = []
    unfinished: list[LeftoverEntry] = []
    jobs: list[Job] = []
    local: list[LocalCheckpoint] = []
    problems: list[str] = []


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of a checkpoint.

    Attributes:
        file: relative to the checkpoint, or "" for the checkpoint itself.
        problem: in words.
        block: its number, or None for the whole file.
        start, end: of the block, bytes of the file; of the whole file without one.
        names: tensors and objects that have bytes there; [] if these cannot be known.
    """

    file: str
    problem: str
    block: int | None = None
    start: int = 0
    end: int = 0
    names: list[str] = []


def open_place(where: str) -> NamedPlace:
    """Find out what a user has named.

    Raises:
        NoCheckpointError: nothing of checkpoints is there; says what is.
        OSError: it cannot be looked at.
        ValueError: it is no place of checkpoints; says what to give.
    """
    storage = open_storage(where)
    if isinstance(storage, ObjectStorage):
        if not storage.steps() and not storage.leftovers() and not storage.kept_aside():
            storage.check()
            raise NoCheckpointError(f"{where} has no checkpoints")
        return NamedPlace("checkpoints", storage.place, storage)
    path = storage.place
    if not os.path.isdir(path):  # noqa: PTH112 - Path's raises where a name is too long
        why = "is a file: name its directory" if os.path.lexists(path) else "does not exist"
        raise NoCheckpointError(f"{path} {why}")
    entries = set(os.listdir(path))
    if manifests.NAME in entries:
        return NamedPlace("one", path)
    if names.METADATA in entries:
        return NamedPlace("dcp", path)
    if names.EPOCH in entries or any(map(_is_of_series, entries)):
        return NamedPlace("checkpoints", path, storage)
    if _local_sessions(path):  # with a ledger, or without
        return NamedPlace("local", path)
    if names.LEDGER in entries:
        return NamedPlace("checkpoints", path, storage)
    raise NoCheckpointError(f"{path} has no checkpoints{_hint(path, entries)}")


def _is_of_series(name: str) -> bool:
    """Return whether a folder with this name in it is one of many checkpoints."""
    of_ours = (
        names.read_step,
        names.read_attempt,
        names.read_replaced,
        names.read_deleted,
        names.read_session_file,
        names.read_doubted,
    )
    return any(read(name) is not None for read in of_ours)


def _hint(path: str, entries: set[str]) -> str:
    """Say which directories in it have some."""
    found = []
    for name in sorted(entries)[:_PEEKED]:
        with contextlib.suppress(OSError):
            inside = set(os.listdir(f"{path}/{name}"))
            known = {manifests.NAME, names.METADATA, names.EPOCH, names.LEDGER} & inside
            if known or any(map(_is_of_series, inside)):
                found.append(name)
    if not found:
        return ""
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return one_line(f"; these directories in it do: {', '.join(found[:_NAMED])}{more}")


# --- which there are ------------------------------------------------------------------------------


def list_all(where: str, looked: Callable[[], None] = lambda: None) -> Listing:
    """Return all that is at a place; raises as `open_place`.

    Args:
        where: see `open_place`.
        looked: called after each checkpoint.
    """
    place = open_place(where)
    local, problems = list_local(place) if place.kind == "local" else ([], [])
    storage = place.storage
    if storage is None:
        return Listing(
            place=place.path,
            kind=place.kind,
            checkpoints=list_checkpoints(place),
            kept_aside=_local_kept_aside(place),
            local=local,
            problems=problems,
        )
    strays = list(storage.strays().values())
    left = [LeftoverEntry(**one._asdict()) for one in storage.leftovers()]
    jobs = [Job(session=one.name, run=one.run, alive=one.alive) for one in storage.sessions() or []]
    return Listing(
        place=place.path,
        kind=place.kind,
        checkpoints=list_checkpoints(place, looked),
        strays=[one.path for one in strays],
        stray_problems=[one.why for one in strays],
        kept_aside=[KeptAsideEntry(**one._asdict()) for one in storage.kept_aside()],
        unfinished=left,
        jobs=jobs,
    )


def list_checkpoints(
    place: NamedPlace, looked: Callable[[], None] = lambda: None
) -> list[Checkpoint]:
    """Return all committed checkpoints, the one that was committed last first.

    Args:
        place: where.
        looked: called after each checkpoint.

    Raises:
        OSError: the place cannot be read.
    """
    if place.kind == "one":
        return [_listed(0, place.path, *_manifest(OneFolder(place.path), 0))]
    if place.storage is None:
        return []
    storage = place.storage
    read: list[tuple[Checkpoint, Manifest | None]] = []
    for step in storage.steps():
        manifest, problem = _manifest(storage, step)
        path = f"{place.path}/{names.step(step)}"
        read.append((_listed(step, path, manifest, problem), manifest))
        looked()
    # As `finding.age`; nobody knows when one was saved whose manifest is damaged.
    read.sort(key=lambda one: (one[0].saved_at or 0.0, one[0].step), reverse=True)
    return _with_ledger(storage, read)


def _manifest(storage: Storage | OneFolder, step: int) -> tuple[Manifest | None, str]:
    """Return the manifest, None if it is damaged, and why the checkpoint is not complete, or ""."""
    manifest = None
    try:
        manifest = storage.manifest(step, check_files=False)
        storage.manifest(step, check_files=True)
    except DamagedCheckpointError as error:
        _raise_refusal(error)
        return manifest, str(error)
    return manifest, ""


def _listed(step: int, path: str, manifest: Manifest | None, problem: str) -> Checkpoint:
    if manifest is None:
        return Checkpoint(step=step, path=path, complete=False, problem=problem)
    return Checkpoint(
        step=manifest.step,
        path=path,
        complete=not problem,
        problem=problem,
        saved_at=manifest.saved_at,
        size=bytes_of(manifest),
        ranks=manifest.world_size,
        session=manifest.session,
        certified=manifest.certified,
    )


def _with_ledger(
    storage: Storage, read: list[tuple[Checkpoint, Manifest | None]]
) -> list[Checkpoint]:
    """Add what the ledger says; one that cannot be read says nothing."""
    entries: list[ledger.Entry] = []
    with contextlib.suppress(OSError):
        entries = ledger.decode(storage.read_ledger())
    candidates = [candidate(manifest) for _, manifest in read if manifest is not None]
    choice = ledger.choose(candidates, entries)
    doubts = {} if choice.is_none_trusted else choice.doubts
    loads = Counter(one.name for one in entries if isinstance(one, ledger.Loaded))
    found = []
    for one, manifest in read:
        name = "" if manifest is None else candidate(manifest).name
        replaced = msgspec.structs.replace(one, loads=loads[name], doubt=doubts.get(name, ""))
        found.append(replaced)
    return found


def _raise_refusal(error: DamagedCheckpointError) -> None:
    """Raise why a manifest could not be read, where that says nothing of the checkpoint."""
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno not in (errno.ENOENT, errno.EIO, errno.EFBIG):
        raise cause


def list_local(place: NamedPlace) -> tuple[list[LocalCheckpoint], list[str]]:
    """Return the local checkpoints of this node, the newest first, and what is left out and why."""
    found, broken = _shards_of(place)
    listed = [_local_checkpoint(*one) for one in found.items()]
    listed.sort(key=lambda one: (one.saved_at, one.iteration), reverse=True)
    return listed, [f"A local checkpoint is left out: {why}" for _, _, why in broken]


def _local_kept_aside(place: NamedPlace) -> list[KeptAsideEntry]:
    found = []
    sessions = _local_sessions(place.path) if place.kind == "local" else []
    for path in (one for session in sessions for one in shards.ShardFolder(*session, 0).aside()):
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            name, size = str(path.relative_to(place.path)), path.lstat().st_size
            found.append(KeptAsideEntry(name=name, step=shards.iteration_of(path), size=size))
    return found


_Save = tuple[str, int, str]  # session, iteration, name of the save


def _shards_of(
    place: NamedPlace, looked: Callable[[], None] = lambda: None
) -> tuple[dict[_Save, list[ShardFile]], list[tuple[str, Path, str]]]:
    """Return the files of each local checkpoint; of others the session, the path and the reason."""
    found: dict[_Save, list[ShardFile]] = {}
    broken = []
    for root, session in _local_sessions(place.path):
        for path in shards.ShardFolder(root, session, 0).paths():
            try:
                file = shards.look(path)
            except FileNotFoundError:
                continue  # deleted meanwhile
            except (DamagedCheckpointError, OSError) as error:
                broken.append((session, path, str(error)))
            else:
                head = file.head
                key = (head.session or session, head.iteration, head.save)
                found.setdefault(key, []).append(file)
            looked()
    return found, broken


def _local_checkpoint(save: _Save, files: Sequence[ShardFile]) -> LocalCheckpoint:
    session, iteration, name = save
    return LocalCheckpoint(
        session=session,
        iteration=iteration,
        save=name,
        saved_at=max(file.head.saved_at for file in files),
        ranks=files[0].head.world_size,
        found=sorted({file.head.rank for file in files}),
        files=len(files),
        size=sum(file.image_bytes for file in files),
    )


class LocalFiles(NamedTuple):
    """The files on this node of the local checkpoints of one iteration.

    Attributes:
        iteration: of training.
        saves: with their files; several if the iteration was saved more than once.
        broken: files whose head or end is damaged, so that their save is not known.
    """

    iteration: int
    saves: list[tuple[LocalCheckpoint, list[ShardFile]]]
    broken: list[Damage]


def local_files(
    place: NamedPlace, iteration: int | None, looked: Callable[[], None] = lambda: None
) -> list[LocalFiles]:
    """Return the files of local checkpoints on this node, the highest iteration first.

    Args:
        place: where.
        iteration: the only one; None = all.
        looked: called after each file.

    Raises:
        NoCheckpointError: there is none; says which there are.
    """
    found, broken = _shards_of(place, looked)
    by_iteration: dict[int, LocalFiles] = {}

    def of(number: int) -> LocalFiles:
        return by_iteration.setdefault(number, LocalFiles(number, [], []))

    for save, files in found.items():
        of(save[1]).saves.append((_local_checkpoint(save, files), files))
    for _, path, why in broken:
        damage = Damage(file=str(path.relative_to(place.path)), problem=why)
        of(shards.iteration_of(path)).broken.append(damage)
    if iteration is not None and iteration not in by_iteration:
        there = ", ".join(map(str, sorted(by_iteration)[-_NAMED:]))
        raise NoCheckpointError(f"{place.path} has no iteration {iteration}; it has {there}")
    ordered = sorted(by_iteration.values(), reverse=True)
    return [one for one in ordered if iteration in (None, one.iteration)]


def check_local(
    place: NamedPlace, files: Sequence[ShardFile], threads: int, read: Callable[[int], None]
) -> list[Damage]:
    """Read every block of files of local checkpoints, and return what is damaged.

    Args:
        place: which the names of files are relative to.
        files: whose heads and ends are whole.
        threads: see `check`.
        read: see `check`.

    Raises:
        OSError: a file cannot be read, for another reason than its disk.
    """
    opened: list[tuple[Callable[[], FileReader], File]] = [
        (partial(DirectReader, str(file.path)), File(size=file.image_bytes, crc32=file.crc32))
        for file in files
    ]
    damage = []
    for at, block, why in check_blocks(opened, shard.BLOCK_BYTES, threads, read):
        file = files[at]
        start = (block or 0) * shard.BLOCK_BYTES
        whole = block is None
        end = file.image_bytes if whole else min(start + shard.BLOCK_BYTES, file.image_bytes)
        damage.append(
            Damage(
                file=str(file.path.relative_to(place.path)),
                problem=why,
                block=block,
                start=start,
                end=end,
                names=[] if block is None else shards.tensors_in(file, block),
            )
        )
    return damage


def _local_sessions(path: str) -> list[tuple[str, str]]:
    """Return root and session of each run whose shards lie here, or one folder below."""
    here = Path(path)
    if shards.has_shards(here):
        return [(path, "")]
    return [(path, one.name) for one in sorted(here.iterdir()) if shards.has_shards(one)]


# --- one of them ----------------------------------------------------------------------------------


def choose(
    place: NamedPlace, step: int | None = None, looked: Callable[[], None] = lambda: None
) -> Chosen:
    """Return a checkpoint: that of a step, or the newest one whose files are all there.

    Args:
        place: where.
        step: of it; None = the newest.
        looked: called after each checkpoint that is looked at.

    Raises:
        NoCheckpointError: there is none; says which there are.
        DamagedCheckpointError: the manifest of the step that was asked for is damaged.
        OSError: it cannot be read.
    """
    if place.kind == "local":
        raise NoCheckpointError(
            f"{place.path} has local checkpoints: list and verify look at them, and "
            "LocalCheckpointManager loads them"
        )
    if place.storage is None and step is not None:
        raise NoCheckpointError(f"{place.path} is one checkpoint: leave step {step} out")
    if place.kind == "dcp":
        return Chosen(place.path)
    storage = place.storage or OneFolder(place.path)
    if place.storage is not None:
        step = _newest(place, looked) if step is None else _existing(place, place.storage, step)
    try:
        manifest = storage.manifest(step or 0, check_files=False)
    except DamagedCheckpointError as error:
        _raise_refusal(error)
        raise
    return Chosen(storage.locate(manifest.step), manifest, storage)


def _newest(place: NamedPlace, looked: Callable[[], None]) -> int:
    listed = list_checkpoints(place, looked)
    found = next((one.step for one in listed if one.complete), None)
    if found is None:
        why = f": {listed[0].problem}" if listed else ""
        raise NoCheckpointError(f"{place.path} has no complete checkpoint{why}")
    return found


def _existing(place: NamedPlace, storage: Storage, step: int) -> int:
    steps = storage.steps()
    if step in steps:
        return step
    if step in storage.strays():
        stray = storage.strays()[step]
        raise NoCheckpointError(f"{stray.path} {stray.why}")
    there = ", ".join(map(str, steps[-_NAMED:])) or "none"
    more = f"{len(steps) - _NAMED} more, and " if len(steps) > _NAMED else ""
    raise NoCheckpointError(f"{place.path} has no step {step}; it has {more}{there}")


def bytes_of(manifest: Manifest) -> int:
    """Return how many bytes all files of a checkpoint have."""
    return sum(file.size for file in manifest.files.values())


def check(chosen: Chosen, threads: int, read: Callable[[int], None]) -> list[Damage]:
    """Read every block of a checkpoint, and return what is damaged.

    Args:
        chosen: a checkpoint with a manifest.
        threads: how many read at the same time, at most.
        read: called with the number of bytes after each block, by any thread; what it raises ends
            the reading.

    Raises:
        CheckpointError: the checkpoint has no checksums.
        OSError: a file cannot be read, for another reason than its disk.
    """
    manifest, storage = chosen.manifest, chosen.storage
    if manifest is None or storage is None:
        raise CheckpointError(
            f"{chosen.path} is of torch.distributed.checkpoint.save, which writes no checksums: "
            "nothing in it can be verified"
        )
    files = list(manifest.files.items())
    opened = [(partial(storage.open, manifest.step, name), file) for name, file in files]
    damage = []
    for at, block, why in check_blocks(opened, manifest.block_bytes, threads, read):
        name, file = files[at]
        start = (block or 0) * manifest.block_bytes
        end = file.size if block is None else min(start + manifest.block_bytes, file.size)
        damage.append(Damage(file=name, problem=why, block=block, start=start, end=end))
    if not damage:  # a file may be longer than it should be, or empty and missing
        try:
            storage.manifest(manifest.step, check_files=True)
        except DamagedCheckpointError as error:
            _raise_refusal(error)
            damage.append(Damage(file="", problem=str(error)))
    return damage


class Deletion(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoints that a rule of retention leaves, and those that it does not.

    Attributes:
        delete: the oldest first.
        keep: steps, the oldest first.
        whole: the newest one that is whole, which is kept in any case.
        damaged: steps of newer ones, which are not.
    """

    delete: list[Checkpoint]
    keep: list[int]
    whole: Checkpoint
    damaged: list[int]


def plan_deletion(
    storage: Storage,
    rule: rules.Rule,
    is_whole: Callable[[int], bool],
    looked: Callable[[], None] = lambda: None,
) -> Deletion:
    """Return which checkpoints go by a rule of retention; the newest whole one never does.

    One that jobs pass over does not count as that, unless they pass over all.

    Args:
        storage: where they are.
        rule: what is kept.
        is_whole: looks at a step; called for the newest first, until one is whole.
        looked: called after each checkpoint.

    Raises:
        NoCheckpointError: none is whole.
    """
    listed = list_checkpoints(NamedPlace("checkpoints", storage.place, storage), looked)
    damaged = []
    for one in sorted(listed, key=lambda one: bool(one.doubt)):
        if one.complete and is_whole(one.step):
            break
        damaged.append(one.step)
    else:
        raise NoCheckpointError(
            f"{storage.place}: none of {count(len(listed), 'checkpoint')} is whole"
            if listed
            else f"{storage.place} has no checkpoints"
        )
    steps = [one.step for one in reversed(listed)]
    certified = [found.step for found in listed if found.certified and found.complete]
    delete = set(rules.to_delete(steps, rule, one.step, certified))
    return Deletion(
        delete=[found for found in reversed(listed) if found.step in delete],
        keep=[step for step in steps if step not in delete],
        whole=one,
        damaged=damaged,
    )


def who_may_load(storage: Storage, whole: Checkpoint) -> str:
    """Return which job could just be loading an older checkpoint, or "" if none could.

    A job loads before it saves. So a job that has saved the newest whole checkpoint needs none that
    is older.

    Args:
        storage: where they are.
        whole: the newest whole one.
    """
    sessions = storage.sessions()
    if sessions is None:
        return "an object store does not tell whether a job is loading one of them"
    for session in sessions:
        if session.alive is False or session.name == whole.session:
            continue
        run = f"run {one_line(session.run)}" if session.run else "a job without a launcher"
        if session.alive is None:
            return f"it cannot be known whether a job still runs ({run}) and is loading one of them"
        return f"a job ({run}) has them open, has saved none yet, and may be loading one of them"
    return ""
