"""Private parts of torch.distributed that are used here; no other module knows their names."""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

from undaunted.base import threads

if TYPE_CHECKING:
    from collections.abc import Iterable


_destroyed: list[Any] = []  # groups


def module() -> Any:
    """Return torch.distributed.distributed_c10d."""
    return importlib.import_module("torch.distributed.distributed_c10d")


def is_initialized() -> bool:
    """Return whether this process has a default group."""
    return bool(module().is_initialized())


def has_groups() -> bool:
    """Return whether torch has a group in its tables, or a default one."""
    return bool(module()._world.pg_map) or is_initialized()  # noqa: SLF001


def backends() -> set[str]:
    """Return the names of the backends of all groups of this process, lower case."""
    configs = module()._world.pg_backend_config  # noqa: SLF001
    return parse_backends(str(text) for text in list(configs.values()))


def parse_backends(configs: Iterable[str]) -> set[str]:
    """Return the parts of names such as ``cpu:gloo,cuda:nccl``."""
    parts = (part.rpartition(":")[2].strip().lower() for one in configs for part in one.split(","))
    return {part for part in parts if part}


def groups() -> list[tuple[int, Any]]:
    """Return size and store of each group of this process."""
    known = module()._world.pg_map  # noqa: SLF001
    return [(group.size(), store) for group, (_, store) in list(known.items())]


def abort_groups() -> None:
    """Abort all groups in one call of torch, where the backend has its communicators.

    If they were aborted one after another, they could wait for each other.
    """
    c10d = module()
    if not c10d.is_initialized():
        return
    grouped = getattr(c10d, "_abort_process_group", None)
    if grouped is not None:
        grouped()
        return
    names = dict(c10d._world.pg_names)  # noqa: SLF001
    for group in sorted(names, key=names.__getitem__, reverse=True):
        group.abort()


def destroy_groups() -> None:
    """Remove all groups from torch's tables, so that `init_process_group` works again.

    The group objects are kept until `release`.
    """
    c10d = module()
    _destroyed.extend(c10d._world.pg_map)  # noqa: SLF001
    if c10d.is_initialized():
        with contextlib.suppress(AssertionError, ValueError):  # the function was quicker
            c10d.destroy_process_group()
    if c10d.is_initialized():  # it was made after the tables were cleared, and is not in them
        c10d._update_default_pg(None)  # noqa: SLF001
    forget_unfinished()


def release() -> None:
    """Release the destroyed groups. The function's frames must be gone.

    Dropping the last reference to a group waits for its threads, which may need the GIL. Python's
    objects of groups release the GIL meanwhile; DistributedDataParallel, kept by frames, does not.

    In another thread, as each event loop of gloo takes up to 10 ms to end.
    """
    if _destroyed:
        groups = _destroyed.copy()
        _destroyed.clear()
        threads.start(groups.clear, "release")


def forget_unfinished() -> None:
    """Remove the rest of an unfinished group from torch's tables, if there is no default group.

    torch numbers all groups, also those that were never finished. All ranks must count from the
    same number, or the ranks of the next groups do not find each other.
    """
    c10d = module()
    if c10d.is_initialized():
        return
    world = c10d._world  # noqa: SLF001
    for name in (
        "pg_map",
        "pg_names",
        "pg_group_ranks",
        "pg_backend_config",
        "pg_to_tag",
        "tags_to_pg",
        "pg_coalesce_state",
        "pg_flight_recorder_hooks",
    ):
        getattr(world, name, {}).clear()
    world.group_count = 0
    if hasattr(c10d, "_unregister_all_process_groups"):
        c10d._unregister_all_process_groups()  # noqa: SLF001
