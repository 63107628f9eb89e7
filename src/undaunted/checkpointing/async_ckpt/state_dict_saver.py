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
import time
from typing import TYPE_CHECKING, Any

from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.api import CheckpointException

from undaunted.agreement.connect import check_alone
from undaunted.checkpointing.async_ckpt import exchange, metadata_cache
from undaunted.checkpointing.async_ckpt.metadata_cache import (
    CheckpointMetadataCache,
    init_checkpoint_metadata_cache,
    verify_global_md_reuse,
)
from undaunted.checkpointing.async_ckpt.ranks import TIMEOUT_S, Failure, Ranks
from undaunted.checkpointing.dcp.garbage import collection_paused
from undaunted.checkpointing.errors import SaveError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.checkpoint.metadata import Metadata
    from torch.distributed.checkpoint.planner import SavePlan, SavePlanner

    from undaunted.checkpointing.async_ckpt.filesystem_async import FileSystemWriterAsync

__all__ = [
    "CheckpointMetadataCache",
    "SaveFailedError",
    "init_checkpoint_metadata_cache",
    "save_state_dict_async_finalize",
    "save_state_dict_async_plan",
    "verify_global_md_reuse",
]


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
    reports = ranks.gather(b"" if ranks.is_coordinator else exchange.encode_report(*mine))

    def finish() -> None:
        if reports is None:
            return
        if metadata is None:
            raise SaveError("the coordinator was given no metadata")
        everyone = [exchange.decode_report(one) if one else mine for one in reports]
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
        local = _together(self._ranks, "the save could not be planned", self._plan_here)
        encoded = exchange.encode_plan(local)
        # A file system may show one rank what it does not show another one yet.
        fits, plain, empty = self._ranks.least(
            [
                cache is not None and cache.fits(local),
                encoded is not None,
                not self._writer.is_occupied,
            ]
        )
        self._writer.is_occupied = not empty
        reused_loaded = False
        if fits and cache is not None:
            central = cache.get_cache_metadata()[0]
            metadata = cache.copied_metadata()
        elif getattr(self._planner, "can_run_decentralized_global_plan", False):
            central, metadata, reused_loaded = self._plan_apart(local, cache)
        else:
            central, metadata = self._plan_together(local, encoded if plain else None)
        if cache is not None:
            if not fits:
                cache.set_cache_metadata(central, local, metadata)
                metadata = cache.copied_metadata()
            cache.set_metadata_caching_status(bool(fits), reused_loaded)

        def copy() -> None:
            final = self._planner.finish_plan(central)
            self._writer.prepare_write_data(final, self._planner)

        _together(self._ranks, "the state could not be copied", copy)
        return metadata

    def _plan_here(self) -> SavePlan:
        planner, coordinates = self._planner, self._ranks.is_coordinator
        self._writer.set_up_storage_writer(coordinates, rank=self._ranks.rank, use_collectives=True)
        if "storage_meta" in inspect.signature(planner.set_up_planner).parameters:
            planner.set_up_planner(self._state_dict, self._writer.storage_meta(), coordinates)
        else:
            planner.set_up_planner(self._state_dict, coordinates)
        return self._writer.prepare_local_plan(planner.create_local_plan())

    def _plan_together(
        self, local: SavePlan, encoded: bytes | None
    ) -> tuple[SavePlan, Metadata | None]:
        made: list[Metadata] = []

        def decide(plans: list[SavePlan]) -> list[SavePlan]:
            decided, metadata = self._planner.create_global_plan(plans)
            made.append(metadata)
            return self._writer.prepare_global_plan(decided)

        central = exchange.plan_together(self._ranks, local, encoded, decide)
        return central, made[0] if made else None

    def _plan_apart(
        self, local: SavePlan, cache: CheckpointMetadataCache | None
    ) -> tuple[SavePlan, Metadata | None, bool]:
        """Each rank decides for itself; the coordinator needs all plans for the metadata only."""
        _, _, loaded, plans = cache.get_cache_metadata() if cache else (None, None, None, None)
        metadata: Any = None
        verified = verify_global_md_reuse(plans, local, self._ranks.rank, self._ranks)
        if verified:
            metadata = loaded if self._ranks.is_coordinator else None
        else:
            everyone = [local]
            if self._ranks.use_dist:
                everyone = exchange.gather_objects(self._ranks, local)

            def merge() -> Any:
                if not self._ranks.is_coordinator:
                    return None
                merged = self._planner.create_global_plan(list(everyone))[1]
                merged.all_local_plans = everyone
                return merged

            metadata = _together(self._ranks, "the save could not be planned", merge)
        central = self._planner.create_decentralized_global_plan(local)
        return self._writer.prepare_decentralized_global_plan(central), metadata, verified


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
