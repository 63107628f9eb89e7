"""The Flight Recorder of this process: the one place that touches torch's inner parts for it.

Called in a thread beside training: it never imports torch, never raises, and waits only for
the interpreter's lock.

torch's dumps of gloo lack the members of groups, and transfers. Both are added here, in the form
that dumps of NCCL have, with keys of our own: ``rank``, ``world_size``, ``dumped_ns``, the time of
the dump, and ``waits``, the transfer that the main thread waits in.
"""

from __future__ import annotations

import linecache
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from undaunted.attribution.flight.recording import NotADumpError, Recording, reduce

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FrameType, ModuleType

# Functions of torch/distributed/distributed_c10d.py, and the argument that names the peer.
_TRANSFERS = {"send": "dst", "recv": "src", "isend": "dst", "irecv": "src"}
_FILE = "torch/distributed/distributed_c10d.py"
_MOST_FRAMES = 200
_forgotten_ns = 0  # what was recorded until then is of groups that are gone

# torch reads the first of these that it knows.
_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")


def is_on(environment: Mapping[str, str]) -> bool:
    """Return whether an environment asks for a recorder of some size."""
    return any(environment.get(name, "").strip().lstrip("0").isdigit() for name in _SIZES)


def forget() -> None:
    """Leave out from now on what is recorded until now: its groups are gone.

    torch goes on with the same recorder, and gives groups that are made anew the same names.
    """
    global _forgotten_ns  # noqa: PLW0603 - as there is one recorder
    _forgotten_ns = time.time_ns()


def dump(*, empty: bool = False) -> dict[str, Any] | None:
    """Return what the recorder holds, None if this process has no recorder, or it is off.

    The recorder is on if ``TORCH_FR_BUFFER_SIZE`` was above 0 when the first group was made.

    Args:
        empty: a recorder in which nothing is counts as well: it is known to be on (`is_on`).
    """
    try:
        return _dump(empty=empty)
    except Exception:  # noqa: BLE001 - torch's inner parts; training goes on without a recording
        return None


def record() -> Recording | None:
    """Return the reduced recording of this rank, None as `dump` does."""
    found = dump()
    try:
        return None if found is None else reduce(found)
    except NotADumpError:
        return None


class Calls(NamedTuple):
    """Collectives of the largest group, the newest ones, as far as the recorder goes back.

    Attributes:
        at_ns: when each was called, nanoseconds since 1970, ascending; [] = there is no recorder.
        waited: the caller waits for the others, as with gloo; with NCCL its device does.
    """

    at_ns: list[int]
    waited: bool = False


def calls() -> Calls:
    """Return which collectives this process has called."""
    try:
        return _calls()
    except Exception:  # noqa: BLE001 - torch's inner parts; training goes on without
        return Calls([])


class _Call(msgspec.Struct, gc=False):
    """What is read of an entry here; the rest is skipped."""

    time_created_ns: int
    process_group: tuple[str, str] = ("", "")
    is_p2p: bool = False
    profiling_name: str = ""


class _Calls(msgspec.Struct, gc=False):
    entries: list[_Call] = []


_CALLS = msgspec.json.Decoder(_Calls, strict=False)  # some versions write numbers as strings


def _calls() -> Calls:
    dumps = (_CALLS.decode(text).entries for text in _texts(_inner()))
    by_group: dict[str, list[_Call]] = {}
    for call in next((found for found in dumps if found), ()):
        if not call.is_p2p:
            by_group.setdefault(call.process_group[0], []).append(call)
    if not by_group:
        return Calls([])
    members = _members(sys.modules["torch.distributed"]) if len(by_group) > 1 else {}
    largest = by_group[max(by_group, key=lambda name: len(members.get(name, ())))]
    waited = largest[-1].profiling_name.startswith("gloo:")
    return Calls(sorted(call.time_created_ns for call in largest), waited)


def _dump(*, empty: bool) -> dict[str, Any] | None:
    found = _written(_inner(), empty=empty)
    if found is None:
        return None
    found["dumped_ns"] = time.time_ns()
    distributed = sys.modules["torch.distributed"]
    found["rank"] = distributed.get_rank()
    found["world_size"] = distributed.get_world_size()
    members = {name: ranks for name, ranks in _members(distributed).items() if ranks}
    config = found.get("pg_config")
    found["pg_config"] = {
        **{name: one for name, one in (config or {}).items() if name},
        **{name: {"name": name, "ranks": str(ranks)} for name, ranks in members.items()},
    }
    found["waits"] = _waits(distributed)
    return found


def _inner() -> object:
    """The part of torch that has the recorders, None where no group was made."""
    torch = sys.modules.get("torch")
    distributed = sys.modules.get("torch.distributed")
    if torch is None or distributed is None or not distributed.is_initialized():
        return None
    return sys.modules.get("torch._C._distributed_c10d") or torch._C._distributed_c10d  # noqa: SLF001


def _written(inner: object, *, empty: bool = False) -> dict[str, Any] | None:
    """Return what the first recorder holds that holds anything."""
    nothing = None
    for text in _texts(inner):
        found = _without_forgotten(msgspec.json.decode(text))
        if isinstance(found, dict):
            if found.get("entries"):
                return found
            nothing = {**found, "entries": []}
    return nothing if empty else None


def _without_forgotten(found: Any) -> Any:
    if not _forgotten_ns or not found.get("entries"):
        return found
    entries = [one for one in found["entries"] if int(one["time_created_ns"]) > _forgotten_ns]
    numbers = {str(one["pg_id"]) for one in entries}
    status = {key: one for key, one in found.get("pg_status", {}).items() if key in numbers}
    return {**found, "entries": entries, "pg_status": status}


def _texts(inner: object) -> Iterator[str | bytes]:
    """What each recorder holds, as JSON: that of NCCL goes first."""
    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        write = getattr(inner, name, None)
        if write is not None:
            yield write(includeCollectives=True, onlyActive=False)


def _members(distributed: ModuleType) -> dict[str, list[int]]:
    """Return global ranks of each group by name, in the order of their ranks inside it."""
    found = {"0": list(range(distributed.get_world_size()))}
    try:
        world = distributed.distributed_c10d._world  # noqa: SLF001
        for group, ranks in list(world.pg_group_ranks.items()):
            name = world.pg_names.get(group)
            if name is not None:
                found[name] = sorted(ranks, key=ranks.get)
    except (AttributeError, RuntimeError):
        pass  # another torch, or groups are being made: only the first one is known
    return found


def _waits(distributed: ModuleType) -> dict[str, Any] | None:
    """Return the transfer that the main thread is in."""
    main = threading.main_thread().ident
    frame = sys._current_frames().get(main) if main is not None else None  # noqa: SLF001
    own = frame is not None and frame.f_code.co_filename.endswith(_FILE)
    if frame is not None and not own and _waits_for_work(frame, distributed):
        return {"name": "wait", "peer": -1}
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return None
        if frame.f_code.co_filename.endswith(_FILE):
            name = frame.f_code.co_name
            if name in _TRANSFERS:
                return {"name": name, "peer": _peer(frame, _TRANSFERS[name], distributed)}
        frame = frame.f_back
    return None


def _waits_for_work(frame: FrameType, distributed: ModuleType) -> bool:
    """Whether the user's line is a ``work.wait()``, which leaves no frame."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    works = (distributed.Work, list, tuple)
    return ".wait(" in line and any(isinstance(one, works) for one in frame.f_locals.values())


def _peer(frame: FrameType, argument: str, distributed: ModuleType) -> int:
    peer = frame.f_locals.get(argument)
    if peer is None:
        place, group = frame.f_locals.get(f"group_{argument}"), frame.f_locals.get("group")
        known = isinstance(place, int)
        peer = distributed.get_global_rank(group, place) if known and group is not None else place
    return peer if isinstance(peer, int) else -1
