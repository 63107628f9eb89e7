"""Names of the files and folders of checkpoints, and what they say.

A step may have any number of digits; it is written with at least eight, so that names sort.
"""

from __future__ import annotations

import re

import msgspec

_STEP = re.compile(r"step-([0-9]{8,20})")
_ATTEMPT = re.compile(r"\.step-([0-9]{8,20})\.([0-9a-z]{1,64})-([0-9]{1,20})")
_REPLACED = re.compile(r"\.step-([0-9]{8,20})\.replaced-([0-9a-z]{1,64})-([0-9]{1,20})")
_DELETED_MARK = "deleted"
_DELETED = re.compile(r"\.step-([0-9]{8,20})\.deleted-[0-9a-z]{1,64}")
_DOUBTED = "doubted-"
_PREFIX = re.compile(r"([0-9a-z]{1,64})-([0-9]{1,20})")
_SESSION_FILE = re.compile(r"\.session-([0-9a-z]{1,64})")
_SESSION = re.compile(r"[0-9a-z]{1,64}")
_MAX_NAME_BYTES = 255

EPOCH = ".epoch"
LEDGER = ".ledger"
METADATA = ".metadata"  # torch's name


class Attempt(msgspec.Struct, frozen=True):
    """One try to save a step.

    Attributes:
        step: the training step.
        session: of the run that tries, lower-case letters and digits.
        number: of the try within its session.
    """

    step: int
    session: str
    number: int

    def folder(self) -> str:
        """Return the name of the folder in which it is written."""
        return f".{step(self.step)}.{self.session}-{self.number}"

    def replaced(self) -> str:
        """Return what the checkpoint is called whose place this attempt takes."""
        return f".{step(self.step)}.replaced-{self.session}-{self.number}"

    def prefix(self) -> str:
        """Return the name within an object store, below the step's."""
        return f"{self.session}-{self.number}"


def attempt(step_number: int, session: str, number: int) -> Attempt:
    """Name an attempt.

    Raises:
        ValueError: a part of it cannot be part of a name.
    """
    if step_number < 0 or number < 0:
        raise ValueError(f"step {step_number}, attempt {number}: both must be at least 0")
    if not _SESSION.fullmatch(session) or session == _DELETED_MARK:
        raise ValueError(f"session {session!r}: 1 to 64 lower-case letters and digits")
    return Attempt(step_number, session, number)


def step(number: int) -> str:
    """Return the name of a committed checkpoint."""
    return f"step-{number:08d}"


def deleted(number: int, token: str) -> str:
    """Return the name of a checkpoint that is being deleted.

    Args:
        number: the step.
        token: lower-case letters and digits that make it unique.
    """
    return f".{step(number)}.{_DELETED_MARK}-{token}"


def doubted(one: Attempt) -> str:
    """Return what a checkpoint is called that was not trusted, once another one has its step.

    Args:
        one: in a folder the attempt that has the step now, in an object store its own.
    """
    return f"doubted-{step(one.step)}.{one.session}-{one.number}"


def read_doubted(name: str) -> Attempt | None:
    """Return the attempt that `doubted` has made this name of; None = it is something else."""
    return read_attempt(f".{name.removeprefix(_DOUBTED)}") if name.startswith(_DOUBTED) else None


def session_file(session: str) -> str:
    """Return the name of the file that a living session holds a lock on."""
    return f".session-{session}"


def read_step(name: str) -> int | None:
    """Return the step of a committed checkpoint's name; None = it is something else."""
    match = _STEP.fullmatch(name)
    if match is None:
        return None
    number = int(match[1])
    return number if step(number) == name else None


def read_attempt(name: str) -> Attempt | None:
    """Return the attempt a folder's name stands for; None = it is something else."""
    match = _ATTEMPT.fullmatch(name)
    if match is None or match[2] == _DELETED_MARK:
        return None
    return Attempt(int(match[1]), match[2], int(match[3]))


def read_object(step_name: str, prefix: str) -> Attempt | None:
    """Return the attempt whose objects have these names above theirs; None = something else."""
    match, number = _PREFIX.fullmatch(prefix), read_step(step_name)
    return None if match is None or number is None else Attempt(number, match[1], int(match[2]))


def read_replaced(name: str) -> Attempt | None:
    """Return the attempt that has put this folder aside; None = it is something else."""
    match = _REPLACED.fullmatch(name)
    return None if match is None else Attempt(int(match[1]), match[2], int(match[3]))


def is_deleted(name: str) -> bool:
    """Return whether this is what is left of a deleted checkpoint."""
    return read_deleted(name) is not None


def read_deleted(name: str) -> int | None:
    """Return the step of the deleted checkpoint of which this is left; None = something else."""
    match = _DELETED.fullmatch(name)
    return None if match is None else int(match[1])


def read_session_file(name: str) -> str | None:
    """Return the session whose lock file this is; None = it is something else."""
    match = _SESSION_FILE.fullmatch(name)
    return None if match is None else match[1]


def check_file(name: str) -> str:
    """Return the name of a file within a checkpoint if it stays there.

    Raises:
        ValueError: it does not.
    """
    if (
        name in ("", ".", "..")
        or "/" in name
        or "\0" in name
        or len(name.encode()) > _MAX_NAME_BYTES
    ):
        raise ValueError(f"{name!r} cannot be the name of a file of a checkpoint")
    return name
