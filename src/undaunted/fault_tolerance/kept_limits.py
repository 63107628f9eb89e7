"""Calculated limits between jobs: ``ft_state.json``, and beside it a file by kind of job.

``ft_state.json`` is in the format of Megatron and NVRx, and has the limits of the job that wrote it
last: they read what is written here, and the other way round. But limits of 16 ranks would end a
job of 1024 of them. So ``ft_state_by_job.json`` has limits for each `Job`, and those that another
kind of job has left in ``ft_state.json`` are not used.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any, cast

import msgspec

from undaunted.base.deadline import within
from undaunted.checkpointing.files.durable import read_file, replace_file
from undaunted.fault_tolerance.rank_monitor_client import RankMonitorClientError

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.fault_tolerance.rank_monitor_client import RankMonitorClient

FILE = "ft_state.json"
_MOST_JOBS = 32
_MOST_BYTES = 1 << 20
_DISK_S = 10.0


class Job(msgspec.Struct, frozen=True):
    """The kind of a job, on which limits depend.

    Attributes:
        ranks: how many there are.
        sections: names of those that are used, or have a limit.
        configuration: sizes that decide how long a step takes, by name.
    """

    ranks: int
    sections: tuple[str, ...]
    configuration: dict[str, int] = {}


class Entry(msgspec.Struct, frozen=True):
    """Limits of a kind of job.

    Attributes:
        job: which.
        state: of `RankMonitorClient.state_dict`.
    """

    job: Job
    state: dict[str, Any]


def choose(state: dict[str, Any] | None, entries: list[Entry], job: Job) -> dict[str, Any] | None:
    """Return the limits for a job, None = none are known.

    Args:
        state: what ``ft_state.json`` has, None = there is none.
        entries: what the file beside it has.
        job: which.
    """
    if state is not None and all(entry.state != state for entry in entries):
        return state  # somebody else has written it since
    return next((entry.state for entry in entries if entry.job == job), None)


def with_entry(entries: list[Entry], new: Entry) -> list[Entry]:
    """Return the entries with a new one in front, in place of that of the same job."""
    return [new, *(entry for entry in entries if entry.job != new.job)][:_MOST_JOBS]


class KeptLimits:
    """The two files of a folder, for one job. A disk that hangs costs 10 s, once.

    Args:
        folder: where they are.
        job: whose limits these are.
        warn: says what went wrong.
        file: name of the first file; that of the other one is made of it.
    """

    def __init__(
        self, folder: str, job: Job, warn: Callable[[str], object], file: str = FILE
    ) -> None:
        self.path = os.path.join(folder, file)  # noqa: PTH118 - it is text for messages
        self._folder = folder
        self._by_job = f"{self.path.removesuffix('.json')}_by_job.json"
        self._job = job
        self._warn = warn
        self._hangs = False

    def make_folder(self) -> None:
        """Make the folder if there is none."""
        self._try(lambda: os.makedirs(self._folder, exist_ok=True))  # noqa: PTH103

    def load(self) -> dict[str, Any] | None:
        """Return the limits for the job, None = none are known."""
        found: list[dict[str, Any] | None] = []
        self._try(lambda: found.append(choose(self._read_state(), self._read_entries(), self._job)))
        return found[0] if found else None

    def load_into(self, client: RankMonitorClient) -> bool:
        """Give a client the limits for the job; return whether it has taken any."""
        state = self.load()
        if state is None:
            return False
        try:
            client.load_state_dict(state)
        except RankMonitorClientError as error:
            self._warn(f"{self.path} is not used: {error}")
            return False
        return True

    def save(self, state: dict[str, Any]) -> bool:
        """Keep limits of the job; return whether that was possible."""
        return self._try(lambda: self._write(state))

    def _write(self, state: dict[str, Any]) -> None:
        plain = json.loads(json.dumps(state))  # as it will be read
        entries = with_entry(self._read_entries(), Entry(self._job, plain))
        _replace(self._by_job, msgspec.json.format(msgspec.json.encode(entries), indent=1))
        _replace(self.path, json.dumps(plain).encode())

    def _read_state(self) -> dict[str, Any] | None:
        return cast("dict[str, Any] | None", self._read(self.path, dict[str, Any], None))

    def _read_entries(self) -> list[Entry]:
        return cast("list[Entry]", self._read(self._by_job, list[Entry], []))

    def _read(self, path: str, kind: object, otherwise: object) -> object:
        try:
            return msgspec.json.decode(read_file(path, _MOST_BYTES), type=cast("Any", kind))
        except FileNotFoundError:
            return otherwise
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            self._warn(f"{path} is damaged, and is not used: {error}")
            return otherwise

    def _try(self, call: Callable[[], object]) -> bool:
        if self._hangs:
            return False

        def try_it() -> str:
            try:
                call()
            except OSError as error:
                return f"{error}"
            return ""

        late = f"the disk of {self._folder} does not answer within {_DISK_S:g} s"
        problem = within(_DISK_S, try_it, late)
        self._hangs = problem is late
        if problem:
            self._warn(f"limits are not kept between jobs: {problem}")
        return not problem


def _replace(path: str, content: bytes) -> None:
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}")  # noqa: PTH118
    try:
        replace_file(path, content, temporary)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)  # noqa: PTH108
        raise
