"""Planning and finishing asynchronous saves, under the names users of NVRx know.

    writer = FileSystemWriterAsync(folder)
    planned = save_state_dict_async_plan(state_dict, writer)
    save, preload, args = writer.get_save_function_and_args()
    end = [lambda: save_state_dict_async_finalize(*planned)]
    queue.schedule_async_request(AsyncRequest(save, args, end, preload_fn=preload))

All ranks of the group call both functions. What goes wrong on one rank is raised on all.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
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
from undaunted.base.garbage import collection_paused
from undaunted.checkpointing.async_ckpt.filesystem_async import Prefix
from undaunted.checkpointing.async_ckpt.ranks import TIMEOUT_S, RankFailure, Ranks
from undaunted.checkpointing.dcp import plan_codec
from undaunted.checkpointing.dcp.objects import dump_loadable, load_object
from undaunted.checkpointing.dcp.torch_private import storage_info
from undaunted.checkpointing.errors import CheckpointError, SaveError, StateError
from undaunted.checkpointing.format.manifest import File  # noqa: TC001 - a type of a field

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.distributed.checkpoint.metadata import Metadata
    from torch.distributed.checkpoint.planner import SavePlanner

    from undaunted.checkpointing.async_ckpt.filesystem_async import FileSystemWriterAsync


__all__ = [
    "CheckpointMetadataCache",
    "SaveFailedError",
    "get_metadata_caching_status",
    "init_checkpoint_metadata_cache",
    "save_state_dict_async_finalize",
    "save_state_dict_async_plan",
    "verify_global_md_reuse",
]

_NOT_PLANNED = "the save could not be planned"
_NOT_WRITTEN = "the checkpoint was not written"


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
    cache = (metadata_cache or the_cache()) if enable_cache else None
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
        ranks.raise_failures(RankFailure.of(results[0]), _NOT_WRITTEN, results[0])
        return
    ranks.raise_failures(None, _NOT_WRITTEN)
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

    def _look(self, cache: CheckpointMetadataCache | None) -> tuple[SavePlan, bytes, bool]:
        """Return the plan of this rank, and as bytes; and whether all ranks use theirs again."""
        local = failure = cause = None
        encoded, fits = b"", False
        try:
            local = self._plan_here()
            if self._ranks.use_dist:
                encoded = self._named(_encode_plan, local)
            fits = cache is not None and cache.fits(local, self._ranks.place)
        except Exception as error:  # noqa: BLE001 - told to all ranks, then raised
            failure, cause = RankFailure.of(error), error
        well, fit = self._ranks.least([failure is None, fits])
        if not well:
            raise self._ranks.error(failure, _NOT_PLANNED) from cause
        assert local is not None
        return local, encoded, bool(fit)

    def _named(self, encode: Callable[..., bytes], *plans: SavePlan) -> bytes:
        """Encode plans; what cannot be sent is refused with the name of the planner."""
        try:
            return encode(*plans)
        except StateError as error:
            raise CheckpointError(
                f"the plan of {type(self._planner).__name__} cannot be sent to another rank: it "
                f"has {error}. Put plain data into plans"
            ) from error

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

    def _plan_together(self, local: SavePlan, encoded: bytes) -> tuple[SavePlan, Metadata | None]:
        """The coordinator decides, and sends each rank its own part."""
        ranks = self._ranks
        gathered = self._gathered(local, encoded)
        metadata: Metadata | None = None

        def decide() -> list[Any] | None:
            nonlocal metadata
            if gathered is None:
                return None
            everyone = gathered()
            # A list of its own: planners may change it, as that of torch 2.6 did.
            plans, metadata = self._planner.create_global_plan(list(everyone))
            decided = self._writer.prepare_global_plan(plans)
            if not ranks.use_dist:
                return decided
            pairs = zip(everyone, decided, strict=True)
            return [self._named(_encode_part, *pair) for pair in pairs]

        parts = _together(ranks, _NOT_PLANNED, decide)
        if not ranks.use_dist:
            return parts[0], metadata
        return _decode_part(local, ranks.scatter(parts)), metadata

    def _plan_apart(
        self, local: SavePlan, encoded: bytes, cache: CheckpointMetadataCache | None
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
                everyone = gathered()
                merged = self._planner.create_global_plan(list(everyone))[1]
                merged.all_local_plans = everyone
                return merged

            metadata = _together(self._ranks, _NOT_PLANNED, merge)
        central = self._planner.create_decentralized_global_plan(local)
        return self._writer.prepare_decentralized_global_plan(central), metadata, verified

    def _gathered(self, local: SavePlan, encoded: bytes) -> Callable[[], list[SavePlan]] | None:
        """Gather the plans of all ranks; on the coordinator, return what decodes them."""
        if not self._ranks.use_dist:
            return lambda: [local]
        gathered = self._ranks.gather(encoded)
        return None if gathered is None else lambda: [_decode_plan(local, one) for one in gathered]


def _together(ranks: Ranks, what: str, function: Callable[[], Any]) -> Any:
    """Return what a function returns here, unless it raises on any rank: then all ranks raise."""
    result = failure = cause = None
    try:
        result = function()
    except Exception as error:  # noqa: BLE001 - told to all ranks, then raised
        failure, cause = RankFailure.of(error), error
    ranks.raise_failures(failure, what, cause)
    return result


# --- plans that are used again --------------------------------------------------------------------


class CheckpointMetadataCache:
    """Of one kind of state.

    Whether something is used again is decided for every save, by all ranks together: each compares
    the plan it has made anew with the one it has kept, and one that differs has all plan anew. So
    do other ranks than those that made the kept plans.
    """

    def __init__(self) -> None:
        self._local: SavePlan | None = None
        self._place: tuple[int, ...] = ()
        self._central: SavePlan | None = None
        self._metadata: Metadata | None = None
        self._loaded_plans: list[SavePlan] | None = None
        self._reused = False
        self._reused_loaded = False

    def set_cached_global_metadata(self, cached_global_metadata: Metadata | None) -> None:
        """Remember the metadata of a checkpoint that was loaded, with the plans in it if any."""
        self._metadata = cached_global_metadata
        self._loaded_plans = getattr(cached_global_metadata, "all_local_plans", None)
        self._local = self._central = None

    def set_cache_metadata(
        self,
        central_plan: SavePlan | None,
        local_plan: SavePlan | None,
        global_metadata: Metadata | None,
        place: tuple[int, ...] = (),
    ) -> None:
        """Remember what was planned.

        Args:
            central_plan: what this rank writes.
            local_plan: what it has.
            global_metadata: None where this is no coordinator.
            place: among the ranks that planned, see `Ranks.place`.
        """
        self._central, self._local, self._place = central_plan, local_plan, place
        self._metadata = global_metadata
        self._loaded_plans = None

    def get_cache_metadata(
        self,
    ) -> tuple[SavePlan | None, SavePlan | None, Metadata | None, list[SavePlan] | None]:
        """Return the central plan, the local plan, the metadata, and plans that were loaded."""
        return self._central, self._local, self._metadata, self._loaded_plans

    def get_metadata_caching_status(self) -> tuple[bool, bool]:
        """Return whether the last save used plans of the one before, and plans of a loaded one."""
        return self._reused, self._reused_loaded

    def set_metadata_caching_status(self, reused: bool, reused_loaded: bool) -> None:
        """Remember what the last save did."""
        self._reused, self._reused_loaded = reused, reused_loaded

    def prepare_save_state_dict_ret(
        self, rank: int, coordinator: int, save_state_dict_ret: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """Return what `save_state_dict_async_plan` has, with the kept metadata if it has none."""
        writer, metadata, *rest = save_state_dict_ret
        if metadata is None and rank == coordinator:
            metadata = self.copied_metadata()
        return (writer, metadata, *rest)

    def fits(self, local_plan: SavePlan, place: tuple[int, ...] = ()) -> bool:
        """Return whether this rank, at this place, may use the kept plan for what it saves now."""
        return self._central is not None and self._place == place and _same(self._local, local_plan)

    def copied_metadata(self) -> Metadata | None:
        """Return the kept metadata, to be completed for one save."""
        return copy.copy(self._metadata)


def verify_global_md_reuse(
    loaded_all_plans: list[SavePlan] | None, local_plan: SavePlan, rank: int, dist_wrapper: Ranks
) -> bool:
    """Return whether, on all ranks, a loaded checkpoint was planned as this one would be.

    Args:
        loaded_all_plans: of the loaded checkpoint, by rank.
        local_plan: of this rank, now.
        rank: of this process.
        dist_wrapper: all ranks; all of them call this.
    """
    same = (
        loaded_all_plans is not None
        and len(loaded_all_plans) == dist_wrapper.world_size
        and _same(loaded_all_plans[rank], _as_written(local_plan))
    )
    return dist_wrapper.least([same])[0] == 1


def _as_written(plan: SavePlan) -> SavePlan:
    """Return a plan without what `dcp.metadata.dumps` leaves out: strides, of torch 2.15."""
    try:
        items = [
            replace(
                item, tensor_data=replace(data, properties=replace(data.properties, strides=None))
            )
            if getattr(getattr(data := item.tensor_data, "properties", None), "strides", None)
            else item
            for item in plan.items
        ]
        return replace(plan, items=items)
    except Exception:  # noqa: BLE001 - as below
        return plan


def _same(one: SavePlan | None, other: SavePlan) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - planners may put anything into plans: then plan anew
        return False


_global: CheckpointMetadataCache | None = None


def init_checkpoint_metadata_cache(cached_global_metadata: Metadata | None = None) -> None:
    """Begin anew with the cache that is used where none is given.

    Args:
        cached_global_metadata: of a checkpoint that was loaded.
    """
    global _global  # noqa: PLW0603 - there is one per process
    _global = CheckpointMetadataCache()
    if cached_global_metadata is not None:
        _global.set_cached_global_metadata(cached_global_metadata)


def the_cache() -> CheckpointMetadataCache:
    """Return the cache that is used where none is given."""
    if _global is None:
        init_checkpoint_metadata_cache()
    assert _global is not None
    return _global


def get_metadata_caching_status() -> tuple[bool, bool]:
    """Return whether the last save used plans of the one before, and plans of a loaded one."""
    return the_cache().get_metadata_caching_status()


# --- as bytes -------------------------------------------------------------------------------------


_MISSING = object()


class _SentPlan(msgspec.Struct, array_like=True, frozen=True):
    """A plan on its way to another rank.

    Attributes:
        kind: name of its class; empty for torch's own.
        plan: the part that `DefaultSavePlanner` makes, as `plan_codec` has it.
        more: what a planner has put beside that, as plain data by the names of the fields.
        prefix: of the files, in a plan that the coordinator sends.
    """

    kind: str
    plan: bytes
    more: bytes
    prefix: str | None = None


def _encode_plan(plan: SavePlan) -> bytes:
    """Return a plan as bytes.

    Raises:
        StateError: there is something in it that is not plain data.
    """
    return _sent(plan, SavePlan([]), plan_codec.encode_plan)


def _decode_plan(local: SavePlan, content: bytes) -> SavePlan:
    """Return the plan of another rank; its class is torch's, or that of the plan of this rank."""
    sent = msgspec.msgpack.decode(content, type=_SentPlan)
    return _received(sent, SavePlan([]), plan_codec.decode_plan(sent.plan), local)


def _encode_part(local: SavePlan, final: SavePlan) -> bytes:
    """Return what the coordinator has made of a rank's plan, without what that rank knows."""
    prefix = getattr(final.storage_data, "prefix", None)
    bare = final if prefix is None else replace(final, storage_data=None)
    known = local if type(local) is type(final) else SavePlan([])
    usual = _usual(local, local.planner_data)
    return _sent(bare, known, lambda plan: plan_codec.encode_part(usual, plan), prefix)


def _decode_part(local: SavePlan, content: bytes) -> SavePlan:
    sent = msgspec.msgpack.decode(content, type=_SentPlan)
    usual = plan_codec.decode_part(_usual(local, local.planner_data), sent.plan)
    known = local if sent.kind == _kind(local) else SavePlan([])
    plan = _received(sent, known, usual, local)
    return plan if sent.prefix is None else replace(plan, storage_data=Prefix(sent.prefix))


def _sent(
    plan: SavePlan, known: SavePlan, encode: Callable[[SavePlan], bytes], prefix: str | None = None
) -> bytes:
    """Encode a plan but for the fields that are those of a known one."""
    more = {
        name: getattr(plan, name)
        for name in _fields(plan)
        if getattr(known, name, _MISSING) is not getattr(plan, name)
    }
    data = plan.planner_data
    try:
        usual = encode(_usual(plan, data))
    except CheckpointError:  # of another form than that of torch's planner
        more["planner_data"] = data
        usual = encode(_usual(plan, None))
    content = dump_loadable(more) if more else b""
    return msgspec.msgpack.encode(_SentPlan(_kind(plan), usual, content, prefix))


def _received(sent: _SentPlan, known: SavePlan, usual: SavePlan, local: SavePlan) -> SavePlan:
    """Return the plan that was sent."""
    kind = type(local) if sent.kind == _kind(local) else SavePlan
    if sent.kind not in ("", _kind(local)):
        raise CheckpointError(
            f"another rank's plan is a {sent.kind}, and this rank's a "
            f"{_kind(local) or 'SavePlan'}: give all ranks the same planner"
        )
    fields = {name: getattr(known, name) for name in _fields(known)}
    fields["planner_data"] = usual.planner_data
    if sent.more:
        fields |= load_object(sent.more, "a plan", "another rank")
    return kind(usual.items, **fields)


def _kind(plan: SavePlan) -> str:
    kind = type(plan)
    return "" if kind is SavePlan else f"{kind.__module__}.{kind.__qualname__}"


def _fields(plan: SavePlan) -> list[str]:
    """Return the names of all fields but those that `plan_codec` encodes."""
    names = (field.name for field in dataclasses.fields(plan))
    return [name for name in names if name not in ("items", "planner_data")]


def _usual(plan: SavePlan, planner_data: Any) -> SavePlan:
    return SavePlan(plan.items, planner_data=planner_data)


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
