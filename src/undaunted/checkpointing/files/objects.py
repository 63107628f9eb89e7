"""Checkpoints in an object store, over fsspec.

There is no rename: the objects of an attempt lie below the step's name, and the checkpoint exists
when its manifest does, one object beside them that is written last.
"""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING

from undaunted.checkpointing.errors import DamagedCheckpointError
from undaunted.checkpointing.files.remote import PART_BYTES, Remote, upload
from undaunted.checkpointing.files.storage import NO_GATE, KeptAside, Leftover, Stray, warn
from undaunted.checkpointing.format import manifest as manifests
from undaunted.checkpointing.format import names, rules

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Collection, Iterable
    from contextlib import AbstractContextManager

    from undaunted.checkpointing.files.storage import FileReader
    from undaunted.checkpointing.format.image import Image

_MARKER = ".json"
_DAY_S = 86_400.0
_CALL_S = 120.0


class ObjectStorage:
    """Implements `storage.Storage` by one object that says that the others are complete.

    Attributes:
        place: the URL.
    """

    def __init__(
        self,
        url: str,
        run: str = "",
        threads: int = 4,
        block_bytes: int = manifests.BLOCK_BYTES,
        part_bytes: int = PART_BYTES,
        abandoned_after_s: float = _DAY_S,
        timeout_s: float = _CALL_S,
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            url: for fsspec, such as ``s3://bucket/run1``.
            run: name of the run whose rounds have epochs.
            threads: that send parts of one object.
            block_bytes: what a checksum is of.
            part_bytes: what is sent at once.
            abandoned_after_s: age of the newest object of an attempt, in seconds, from which on it
                counts as left behind; nobody can tell whether its session still lives.
            timeout_s: for each call of the store, which sends or gets one part at most.

        Raises:
            ValueError: fsspec, or what it needs for this URL, is not installed; or it is no URL.
        """
        self.place = url.rstrip("/")
        self._run = run
        self._threads = threads
        self._block_bytes = block_bytes
        self._part_bytes = part_bytes
        self._abandoned_after_s = abandoned_after_s
        self._remote = Remote(self.place, timeout_s)

    def target(self, step: int, session: str, attempt: int) -> str:
        """See `Storage`."""
        return f"{self.place}/{_below(names.attempt(step, session, attempt))}"

    def write(
        self, target: str, image: Image, memory: memoryview, wrote: Callable[[int], None]
    ) -> str:
        """See `Storage`."""
        path = f"{self._path(_below(self._attempt(target)))}/{names.check_file(image.name)}"
        data = memory[image.offset : image.offset + image.size]
        return upload(
            self._remote, path, data, self._block_bytes, wrote, self._threads, self._part_bytes
        )

    def write_small(self, target: str, name: str, content: bytes) -> None:
        """See `Storage`."""
        self._put(f"{_below(self._attempt(target))}/{names.check_file(name)}", content)

    def discard(self, target: str, files: Collection[str] | None = None) -> None:
        """See `Storage`."""
        attempt = self._attempt(target)
        if files is None:
            self._remove_below(attempt)
            return
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                self._remove(f"{_below(attempt)}/{names.check_file(name)}")

    def commit(
        self,
        target: str,
        manifest: manifests.Manifest,
        gate: AbstractContextManager[object] = NO_GATE,
        *,
        aside: bool = False,
    ) -> None:
        """See `Storage`."""
        attempt = self._attempt(target)
        try:
            self._check_files(attempt, manifest)
        except DamagedCheckpointError as error:
            raise OSError(
                errno.ENOENT, f"not all objects are there that ranks have written ({error})", target
            ) from error
        former = self._attempt_of(attempt.step)
        rules.check_fence(self._fence(), self._run, manifest.epoch, self.place)
        kept = aside and former not in (None, attempt)
        if kept:
            self._keep(attempt.step)
        with gate:
            self._put(names.step(attempt.step) + _MARKER, manifests.encode(manifest))
        if former not in (None, attempt) and not kept:
            with contextlib.suppress(OSError):  # left for the sweep
                self._remove_below(former)

    def _keep(self, step: int) -> None:
        """Have the objects of a checkpoint stay when another one takes its step."""
        with contextlib.suppress(OSError, DamagedCheckpointError):  # they go with the next sweep
            manifest = self._read_manifest(step)
            self._put(names.doubted(_attempt_in(manifest)) + _MARKER, manifests.encode(manifest))

    def raise_epoch(self, epoch: int) -> None:
        """See `Storage`."""
        before = self._fence()
        # Nothing tells who is alive: a former job of this name is taken for dead.
        after = rules.begun(before, self._run, epoch, self.place, alive=False)
        if after != before:
            self._put(names.EPOCH, rules.encode_fence(after))

    def steps(self) -> list[int]:
        """See `Storage`."""
        found = []
        for path in self._remote.within(self._remote.root):
            name = path.rpartition("/")[2]
            step = names.read_step(name.removesuffix(_MARKER)) if name.endswith(_MARKER) else None
            if step is not None:
                found.append(step)
        return sorted(found)

    def strays(self) -> dict[int, Stray]:
        """See `Storage`: objects without a manifest are attempts, and none of these is one."""
        return {}

    def kept_aside(self) -> list[KeptAside]:
        """See `Storage`."""
        kept = []
        for path in sorted(self._remote.within(self._remote.root)):
            name = path.rpartition("/")[2]
            attempt = names.read_doubted(name.removesuffix(_MARKER))
            if attempt is not None and name.endswith(_MARKER):
                below = self._remote.below(self._path(_below(attempt)))
                size = sum(one.size for one in below.values())
                kept.append(KeptAside(name, attempt.step, size))
        return kept

    def manifest(self, step: int, *, check_files: bool = True) -> manifests.Manifest:
        """See `Storage`."""
        path = self._path(names.step(step) + _MARKER)
        try:
            found = self._read_manifest(step)
            if found.step != step:
                raise DamagedCheckpointError(f"{path}: is the manifest of step {found.step}", path)
            if check_files:
                self._check_files(_attempt_in(found), found)
        except OSError as error:
            raise DamagedCheckpointError(str(error), path) from error
        return found

    def open(self, step: int, name: str, *, shared: bool = False) -> FileReader:  # noqa: ARG002
        """See `Storage`; each process fetches for itself."""
        names.check_file(name)
        attempt = _attempt_in(self._read_manifest(step))
        return _ObjectReader(self._remote, f"{self._path(_below(attempt))}/{name}")

    def locate(self, step: int) -> str:
        """See `Storage`."""
        return f"{self.place}/{_below(_attempt_in(self._read_manifest(step)))}"

    def read_ledger(self) -> bytes:
        """See `Storage`."""
        try:
            return self._remote.get(self._path(names.LEDGER))
        except FileNotFoundError:
            return b""

    def write_ledger(self, content: bytes) -> None:
        """See `Storage`."""
        self._put(names.LEDGER, content)

    def delete(self, step: int) -> None:
        """See `Storage`."""
        former = self._attempt_of(step, required=True)
        self._remove(names.step(step) + _MARKER)
        if former is not None:
            self._remove_below(former)

    def begin_last(self, session: str) -> None:
        """See `Storage`: what is written is too young to be removed."""

    def sweep(self, session: str) -> list[str]:
        """See `Storage`: what is older than `abandoned_after_s` counts as left by an ended one."""
        clock = names.session_file(session)
        found = self._remote.below(self._remote.root)
        if not found:  # a bucket that does not exist looks empty as well
            self._remote.check_bucket()
        groups = self._uncommitted(found)
        left = [one for one in groups if one.session != session]
        if not left:
            return []
        # The store's clock and no other says how old an object is.
        self._put(clock, b"")
        now = self._remote.within(self._remote.root)[self._path(clock)].written
        self._remove(clock)
        swept = []
        for attempt in left:
            written = [found[path].written for path in groups[attempt]]
            if _is_older(written, now, self._abandoned_after_s):
                try:
                    self._remove_below(attempt)
                    swept.append(_below(attempt))
                except OSError as error:
                    where = f"{self.place}/{_below(attempt)}"
                    warn("%s cannot be removed, nor all that is in it: %s", where, error)
        return swept

    def leftovers(self) -> list[Leftover]:
        """See `Storage`."""
        found = self._remote.below(self._remote.root)
        return [
            Leftover(
                _below(one), one.step, "unfinished", sum(found[path].size for path in paths), None
            )
            for one, paths in self._uncommitted(found).items()
        ]

    def sessions(self) -> None:
        """See `Storage`: a store has no locks."""

    def check(self) -> None:
        """Raise FileNotFoundError if there is no such bucket, which looks as an empty one does."""
        self._remote.check_bucket()

    def close(self) -> None:
        """See `Storage`."""

    def _uncommitted(self, found: Iterable[str]) -> dict[names.Attempt, list[str]]:
        """Return the attempts that are not the checkpoint of their step, and their objects.

        Those that were kept since they are not trusted are left out.
        """
        groups: dict[names.Attempt, list[str]] = {}
        kept = set()
        for path in found:
            parts = path.removeprefix(f"{self._remote.root}/").split("/")
            if len(parts) == 1:
                kept.add(names.read_doubted(parts[0].removesuffix(_MARKER)))
            attempt = names.read_object(parts[0], parts[1]) if len(parts) == 3 else None
            if attempt is not None:
                groups.setdefault(attempt, []).append(path)
        committed = {step: self._attempt_of(step) for step in {one.step for one in groups}}
        return {
            one: groups[one]
            for one in sorted(groups, key=_below)
            if committed[one.step] != one and one not in kept
        }

    def _path(self, name: str) -> str:
        return f"{self._remote.root}/{name}"

    def _attempt(self, target: str) -> names.Attempt:
        place, _, below = target.rpartition("/step-")
        step, _, prefix = f"step-{below}".partition("/")
        attempt = names.read_object(step, prefix)
        if place != self.place or attempt is None:
            raise ValueError(f"{target}: not the place of an attempt in {self.place}")
        return attempt

    def _attempt_of(self, step: int, *, required: bool = False) -> names.Attempt | None:
        """Return which attempt is the checkpoint of a step; None = there is none, or no telling."""
        try:
            return _attempt_in(self._read_manifest(step))
        except FileNotFoundError:
            if required:
                raise
        except DamagedCheckpointError:
            pass
        return None

    def _read_manifest(self, step: int) -> manifests.Manifest:
        path = self._path(names.step(step) + _MARKER)
        return manifests.decode(self._remote.get(path), path)

    def _check_files(self, attempt: names.Attempt, content: manifests.Manifest) -> None:
        """Raise `DamagedCheckpointError` unless all objects are there with their sizes."""
        above = self._path(_below(attempt))
        found = self._remote.below(above)
        for name, file in content.files.items():
            path = f"{above}/{name}"
            if path not in found:
                raise DamagedCheckpointError(f"{path} is missing", path)
            if found[path].size != file.size:
                raise DamagedCheckpointError(
                    f"{path} has {found[path].size} bytes and should have {file.size}", path
                )

    def _fence(self) -> rules.Fence:
        try:
            return rules.decode_fence(self._remote.get(self._path(names.EPOCH)))
        except FileNotFoundError:
            return rules.Fence()

    def _put(self, name: str, content: bytes) -> None:
        self._remote.put(self._path(name), content)

    def _remove(self, name: str) -> None:
        self._remote.remove(self._path(name))

    def _remove_below(self, attempt: names.Attempt) -> None:
        self._remote.remove_below(self._path(_below(attempt)))


class _ObjectReader:
    """Implements `storage.FileReader`."""

    def __init__(self, remote: Remote, path: str) -> None:
        self._remote = remote
        self._path = path

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """See `FileReader`."""
        content = self._remote.get(self._path, offset, offset + len(buffer))
        if len(content) != len(buffer):
            raise EOFError(f"{self._path}: ends at byte {offset + len(content)}")
        buffer[:] = content

    def close(self) -> None:
        """See `FileReader`."""


def _below(attempt: names.Attempt) -> str:
    """Return where an attempt is, relative to the place."""
    return f"{names.step(attempt.step)}/{attempt.prefix()}"


def _attempt_in(content: manifests.Manifest) -> names.Attempt:
    try:
        return names.attempt(content.step, content.session, content.attempt)
    except ValueError as error:
        raise DamagedCheckpointError(str(error), manifests.NAME) from error


def _is_older(written: list[dt.datetime | None], now: dt.datetime | None, age_s: float) -> bool:
    """Return whether all were written that long ago; no, where there is no telling."""
    return now is not None and all(
        one is not None and (now - one).total_seconds() >= age_s for one in written
    )
