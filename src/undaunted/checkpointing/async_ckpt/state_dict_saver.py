"""Planning and finishing asynchronous saves, under the names users of NVRx know.

    writer = FileSystemWriterAsync(folder)
    planned = save_state_dict_async_plan(state_dict, writer)
    save, preload, args = writer.get_save_function_and_args()
    end = [lambda: save_state_dict_async_finalize(*planned)]
    queue.schedule_async_request(AsyncRequest(save, args, end, preload_fn=preload))

All ranks of the group call both functions. What goes wrong on one rank is raised on all.
"""

from __future__ import annotations

import inspect
import pickle
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult

from undaunted.agreement.connect import check_alone
from undaunted.checkpointing.async_ckpt import metadata_cache
from undaunted.checkpointing.async_ckpt.filesystem_async import Prefix
from undaunted.checkpointing.async_ckpt.metadata_cache import (
    CheckpointMetadataCache,
    init_checkpoint_metadata_cache,
    verify_global_md_reuse,
)
from undaunted.checkpointing.async_ckpt.ranks import TIMEOUT_S, Failure, Ranks
from undaunted.checkpointing.dcp import plan_codec
from undaunted.checkpointing.dcp.garbage import collection_paused
from undaunted.checkpointing.dcp.torch_private import storage_info
from undaunted.checkpointing.errors import CheckpointError, SaveError
from undaunted.checkpointing.format.manifest import File  # noqa: TC001 - a type of a field

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.distributed.checkpoint.metadata import Metadata
    from torch.distributed.checkpoint.planner import SavePlanner

    from undaunted.checkpointing.async_ckpt.filesystem_async import FileSystemWriterAsync

__all__ = [
    "CheckpointMetadataCache",
    "SaveFailedError",
    "init_checkpoint_metadata_cache",
    "save_state_dict_async_finalize",
    "save_state_dict_async_plan",
    "verify_global_md_reuse",
]

_NOT_PLANNED = "the save could not be planned"


class SaveFailedError(SaveError, CheckpointException):  # type: ignore[misc]  # torch: no types
    """A checkpoint was not planned or not finished; torch's `CheckpointException` as well."""

    def __init__(self, error: SaveError) -> None:
        SaveError.__init__(self, str(error), error.ranks, error.errno)
        self._failures = dict.fromkeys(error.ranks, (error, None))

    def __str__(self) -> str:
        return str(self.args[0])


def save_state_dict_async_plan(
    state_dict: dict[str, Any],
    storage_writer: FileSystemWriterAsync,
    process_group: Any = None,
    coordinator_rank: int = 0,
    planner: SavePlanner | None = None,
    enable_cache: bool = False,
    metadata_cache: CheckpointMetadataCache | None = None,
    timeout: float = TIMEOUT_S,
) -> tuple[FileSystemWriterAsync, Metadata | None, Ranks]:
    """Decide with all ranks what each one writes, and copy the state.

    When this returns, training may change the state.

    Args:
        state_dict: flat or nested; what the planner takes.
        storage_writer: a new one.
        process_group: of the ranks that save; None = all.
        coordinator_rank: the rank in the group that plans and finishes.
        planner: a new one; None = torch's `DefaultSavePlanner`.
        enable_cache: use plans of the save before again as long as no rank's structure changes.
        metadata_cache: where they are kept; None = in one of this process.
        timeout: for each wait for other ranks, in seconds.

    Returns:
        What `save_state_dict_async_finalize` takes: the writer, the metadata (on the coordinator)
        and the ranks.

    Raises:
        SaveFailedError: it could not be planned or copied on a rank; raised on all.
    """
    storage_writer.began = time.monotonic()
    ranks = Ranks(process_group, coordinator_rank, timeout)
    cache = (metadata_cache or _the_cache()) if enable_cache else None
    try:
        if not ranks.use_dist:
            check_alone(kind=SaveError)
        planning = _Planning(state_dict, storage_writer, ranks, planner or DefaultSavePlanner())
        with collection_paused():
            metadata = planning.run(cache)
    except SaveError as error:
        raise SaveFailedError(error) from error
    storage_writer.stall_s = time.monotonic() - storage_writer.began
    return storage_writer, metadata, ranks


def save_state_dict_async_finalize(
    storage_writer: FileSystemWriterAsync, global_metadata: Metadata | None, dist_wrapper: Ranks
) -> None:
    """Make the checkpoint exist, after all ranks have written.

    Args:
        storage_writer: what `save_state_dict_async_plan` has returned, as are the others.
        global_metadata: of the state, on the coordinator.
        dist_wrapper: the ranks.

    Raises:
        SaveFailedError: a rank has not written, or the coordinator could not finish; raised on all.
    """
    try:
        with collection_paused():
            _finalize(storage_writer, global_metadata, dist_wrapper)
    except SaveError as error:
        raise SaveFailedError(error) from error
    storage_writer.announce()


def _finalize(writer: FileSystemWriterAsync, metadata: Metadata | None, ranks: Ranks) -> None:
    results = writer.retrieve_write_results()
    if isinstance(results, tuple):
        ranks.raise_failures(Failure.of(results[0]), "the checkpoint was not written", results[0])
        return
    ranks.raise_failures(None, "the checkpoint was not written")
    mine = (results, writer.written_files())
    reports = ranks.gather(b"" if ranks.is_coordinator else _encode_report(*mine))

    def finish() -> None:
        if reports is None:
            return
        if metadata is None:
            raise SaveError("the coordinator was given no metadata")
        everyone = [_decode_report(one) if one else mine for one in reports]
        writer.finish(metadata, [one for one, _ in everyone], [files for _, files in everyone])

    _together(ranks, "the checkpoint was not finished", finish)


class _Planning:
    """One save, until its content is fixed."""

    def __init__(
        self,
        state_dict: dict[str, Any],
        writer: FileSystemWriterAsync,
        ranks: Ranks,
        planner: SavePlanner,
    ) -> None:
        self._state_dict = state_dict
        self._writer = writer
        self._ranks = ranks
        self._planner = planner

    def run(self, cache: CheckpointMetadataCache | None) -> Metadata | None:
        """Plan and copy; return the metadata, on the coordinator."""
        local, encoded, fits = self._look(cache)
        metadata: Metadata | None
        reused_loaded = False
        if fits and cache is not None:
            central = cache.get_cache_metadata()[0]
            metadata = cache.copied_metadata()
        elif getattr(self._planner, "can_run_decentralized_global_plan", False):
            central, metadata, reused_loaded = self._plan_apart(local, encoded, cache)
        else:
            central, metadata = self._plan_together(local, encoded)
        if cache is not None:
            if not fits:
                cache.set_cache_metadata(central, local, metadata, self._ranks.place)
                metadata = cache.copied_metadata()
            cache.set_metadata_caching_status(fits, reused_loaded)

        def copy() -> None:
            final = self._planner.finish_plan(central)
            self._writer.prepare_write_data(final, self._planner)

        _together(self._ranks, "the state could not be copied", copy)
        return metadata

    def _look(self, cache: CheckpointMetadataCache | None) -> tuple[SavePlan, bytes | None, bool]:
        """Return the plan of this rank, and as bytes; and whether all ranks use theirs again.

        There are planners whose plans hold more than plain data. If any rank has one, there are no
        bytes on any rank, and plans travel as torch sends objects, by pickle.
        """
        local = encoded = failure = cause = None
        fits = False
        try:
            local = self._plan_here()
            encoded = _encoded(local) if self._ranks.use_dist else None
            fits = cache is not None and cache.fits(local, self._ranks.place)
        except Exception as error:  # noqa: BLE001 - told to all ranks, then raised
            failure, cause = Failure.of(error), error
        well, plain, fit = self._ranks.least([failure is None, encoded is not None, fits])
        if not well:
            raise self._ranks.error(failure, _NOT_PLANNED) from cause
        assert local is not None
        return local, encoded if plain else None, bool(fit)

    def _plan_here(self) -> SavePlan:
        planner, coordinates = self._planner, self._ranks.is_coordinator
        self._writer.set_up_storage_writer(coordinates, rank=self._ranks.rank, use_collectives=True)
        if "storage_meta" in inspect.signature(planner.set_up_planner).parameters:
            planner.set_up_planner(self._state_dict, self._writer.storage_meta(), coordinates)
        else:
            planner.set_up_planner(self._state_dict, coordinates)
        plan = self._writer.prepare_local_plan(planner.create_local_plan())
        if coordinates:  # here, as no rank writes before all have planned
            self._writer.drop_leftovers()
        return plan

    def _plan_together(
        self, local: SavePlan, encoded: bytes | None
    ) -> tuple[SavePlan, Metadata | None]:
        """The coordinator decides; each rank is told its own part."""
        ranks = self._ranks
        gathered = self._gathered(local, encoded)
        metadata: Metadata | None = None

        def decide() -> list[Any] | None:
            nonlocal metadata
            if gathered is None:
                return None
            everyone = [_decoded(one) for one in gathered]
            # A list of its own: planners may change it, as that of torch 2.6 did.
            plans, metadata = self._planner.create_global_plan(list(everyone))
            decided = self._writer.prepare_global_plan(plans)
            if not ranks.use_dist:
                return decided
            pairs = zip(everyone, decided, strict=True)
            return [_encode_part(*pair) if encoded else pickle.dumps(pair[1]) for pair in pairs]

        parts = _together(ranks, _NOT_PLANNED, decide)
        if not ranks.use_dist:
            return parts[0], metadata
        mine = ranks.scatter(parts)
        if encoded:
            return _decode_part(local, mine), metadata
        return _together(ranks, _NOT_PLANNED, lambda: _unpickled(mine)), metadata

    def _plan_apart(
        self, local: SavePlan, encoded: bytes | None, cache: CheckpointMetadataCache | None
    ) -> tuple[SavePlan, Metadata | None, bool]:
        """Each rank decides for itself; the coordinator needs all plans for the metadata only."""
        _, _, loaded, plans = cache.get_cache_metadata() if cache else (None, None, None, None)
        metadata: Any = None
        verified = verify_global_md_reuse(plans, local, self._ranks.rank, self._ranks)
        if verified:
            metadata = loaded if self._ranks.is_coordinator else None
        else:
            gathered = self._gathered(local, encoded)

            def merge() -> Any:
                if gathered is None:
                    return None
                everyone = [_decoded(one) for one in gathered]
                merged = self._planner.create_global_plan(list(everyone))[1]
                merged.all_local_plans = everyone
                return merged

            metadata = _together(self._ranks, _NOT_PLANNED, merge)
        central = self._planner.create_decentralized_global_plan(local)
        return self._writer.prepare_decentralized_global_plan(central), metadata, verified

    def _gathered(
        self, local: SavePlan, encoded: bytes | None
    ) -> list[SavePlan] | list[tuple[bytes, bool]] | None:
        """Return the plans of all ranks, on the coordinator; see `_decoded`."""
        ranks = self._ranks
        if not ranks.use_dist:
            return [local]
        mine = encoded or _together(ranks, _NOT_PLANNED, lambda: pickle.dumps(local))
        gathered = ranks.gather(mine)
        return None if gathered is None else [(one, encoded is not None) for one in gathered]


def _together(ranks: Ranks, what: str, function: Callable[[], Any]) -> Any:
    """Return what a function returns here, unless it raises on any rank: then all ranks raise."""
    result = failure = cause = None
    try:
        result = function()
    except Exception as error:  # noqa: BLE001 - told to all ranks, then raised
        failure, cause = Failure.of(error), error
    ranks.raise_failures(failure, what, cause)
    return result


def _the_cache() -> CheckpointMetadataCache:
    return metadata_cache.the_cache()


# --- as bytes -------------------------------------------------------------------------------------


def _encoded(plan: SavePlan) -> bytes | None:
    """Return a plan as bytes; None when there is something in it that is not plain data."""
    if type(plan) is not SavePlan:
        return None
    try:
        return plan_codec.encode_plan(plan)
    except CheckpointError:
        return None


def _decoded(plan: SavePlan | tuple[bytes, bool]) -> SavePlan:
    """Return a plan, given that or its bytes, and whether they are of `_encoded`."""
    if isinstance(plan, SavePlan):
        return plan
    content, plain = plan
    return plan_codec.decode_plan(content) if plain else _unpickled(content)


def _unpickled(content: bytes) -> SavePlan:
    plan: SavePlan = pickle.loads(content)  # noqa: S301 - of a rank of this job, as by torch
    return plan


class _Part(msgspec.Struct, array_like=True, frozen=True):
    """What a rank writes; the prefix of its files, which is no plain data, apart."""

    prefix: str | None
    plan: bytes


class _Result(msgspec.Struct, array_like=True, frozen=True):
    fqn: str
    at: tuple[int, ...] | None
    index: int | None
    name: str
    offset: int
    length: int


class _Report(msgspec.Struct, array_like=True, frozen=True):
    """What a rank has written."""

    results: list[_Result]
    files: dict[str, File]


def _encode_part(local: SavePlan, final: SavePlan) -> bytes:
    prefix = getattr(final.storage_data, "prefix", None)
    bare = final if prefix is None else replace(final, storage_data=None)
    return msgspec.msgpack.encode(_Part(prefix, plan_codec.encode_part(local, bare)))


def _decode_part(local: SavePlan, content: bytes) -> SavePlan:
    part = msgspec.msgpack.decode(content, type=_Part)
    plan = plan_codec.decode_part(local, part.plan)
    return plan if part.prefix is None else replace(plan, storage_data=Prefix(part.prefix))


def _encode_report(results: Sequence[WriteResult], files: dict[str, File]) -> bytes:
    wire = []
    for one in results:
        index, place = one.index, one.storage_data
        at = None if index.offset is None else tuple(index.offset)
        where = (place.relative_path, place.offset, place.length)
        wire.append(_Result(index.fqn, at, index.index, *where))
    return msgspec.msgpack.encode(_Report(wire, files))


def _decode_report(content: bytes) -> tuple[list[WriteResult], dict[str, File]]:
    report = msgspec.msgpack.decode(content, type=_Report)
    results = [
        WriteResult(
            MetadataIndex(one.fqn, one.at, one.index),
            one.length,
            storage_info(one.name, one.offset, one.length),
        )
        for one in report.results
    ]
    return results, report.files
