"""From a state to files in the arena: planning with all ranks, and copying.

torch's planners decide which rank writes what. As long as no rank's structure changes, what they
have decided is used again: then a save costs one small agreement and the copy.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeGuard

import msgspec
import torch
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.default_planner import create_default_local_save_plan
from torch.distributed.checkpoint.metadata import StorageMeta

from undaunted.agreement.failures import Failure
from undaunted.base.garbage import collection_paused
from undaunted.checkpointing.dcp import items, packed, plan_codec, sameness, states
from undaunted.checkpointing.dcp import metadata as metadata_format
from undaunted.checkpointing.dcp.objects import WrittenValues
from undaunted.checkpointing.errors import CheckpointError
from undaunted.checkpointing.memory.copy import warm_up

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Sequence

    from torch.distributed.checkpoint.metadata import Metadata
    from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem

    from undaunted.agreement.agreement import Agreeing
    from undaunted.checkpointing.format.image import Image
    from undaunted.checkpointing.memory.arena import Arena

_REUSE = b"reuse"
_ANEW = b"anew"


class _Structure(msgspec.Struct, array_like=True, frozen=True):
    """The structure and the values of one rank's state, at the beginning of a save.

    Attributes:
        plan: number of its plan.
        structure: of its state now.
        values: digests of what it has in common with others, see `sameness.Groups`.
        replicas: likewise of tensors, to certify; see `sameness.Replicas`.
    """

    plan: int
    structure: bytes
    values: dict[int, bytes] = {}
    replicas: dict[int, bytes] = {}


class _Proposal(msgspec.Struct, array_like=True, frozen=True):
    """Of one rank for a new plan; see `sameness.Content`."""

    plan: bytes
    content: sameness.Content


class _Decision(msgspec.Struct, array_like=True, frozen=True):
    """Of rank 0 for one rank.

    Attributes:
        number: of the plan, the same for all ranks.
        structure: of the states of all ranks, hexadecimal.
        part: what this rank writes, see ``plan_codec.encode_part``.
        apart: what `sameness.grouped` says of this rank.
        replicas: what `sameness.replicated` says of this rank.
    """

    number: int
    structure: str
    part: bytes
    apart: dict[int, list[int]]
    replicas: dict[int, list[int]]


@dataclass(eq=False)
class _CurrentPlan:
    """What holds as long as the structure stays.

    Attributes:
        number: from 1.
        structure: fingerprint of all ranks, hexadecimal.
        mine: fingerprint of this rank.
        final: what this rank writes.
        laid: where; a list of one file, or of none.
        overall: on rank 0 what it keeps to make the metadata, else None.
        groups: values that have to be the same on other ranks.
        replicas: tensors that have to be the same on other ranks, where saves are certified.
        others_bytes: length of the items without a frame at the last save, None before the first.
    """

    number: int
    structure: str
    mine: bytes
    final: SavePlan
    laid: list[items.Laid]
    overall: _GlobalPlan | None
    groups: sameness.Groups
    replicas: sameness.Replicas
    others_bytes: int | None = None


@dataclass(eq=False)
class _GlobalPlan:
    """The files of all ranks, on rank 0.

    Attributes:
        structures: number of the plan, and structure, of all ranks.
        compared: how many parts of tensors several ranks have, which are the same.
    """

    structures: list[tuple[int, bytes]]
    metadata: Metadata
    files: list[list[items.Laid]]
    encoded: tuple[list[bytes], bytes] | None = field(default=None)
    compared: int = 0
    drawn: bytes | None = field(default=None)

    def encode(self, reports: Sequence[bytes]) -> bytes:
        if self.encoded is None or self.encoded[0] != list(reports):
            with collection_paused():
                content = metadata_format.assemble(self.metadata, self.files, reports)
            self.encoded = (list(reports), content)
        return self.encoded[1]

    def draw(self) -> bytes:
        if self.drawn is None:
            with collection_paused():
                self.drawn = metadata_format.draw_blueprint(self.metadata, self.files)
        return self.drawn


@dataclass(frozen=True)
class Staged:
    """A copy of the state in the arena.

    Attributes:
        files: what this rank has to write; empty when other ranks write all.
        report: what rank 0 has to know for the metadata.
        damage: to certify: returns the name of an item that is not in the arena any more as it was
            in the state, "" if all are. None = nobody asks.
        arrive: waits until all of it lies in the arena. None = all is there.
    """

    files: list[Image]
    report: bytes
    damage: Callable[[], str] | None = None
    arrive: Callable[[], None] | None = None


class Planned:
    """The plan of one save of a state.

    Attributes:
        structure: fingerprint of the structure, hexadecimal, the same on all ranks.
        certified: on rank 0: what several ranks have was compared for this save.
    """

    def __init__(
        self,
        plan: _CurrentPlan,
        planner: SavePlanner,
        written: WrittenValues,
        content: sameness.Digests | None = None,
    ) -> None:
        """Args: the parts; and the digests of what several ranks have, to certify."""
        compared = plan.overall is not None and plan.overall.compared > 0
        self.certified = content is not None and compared
        self._content = content
        self._plan = plan
        self._planner = planner
        self._written = written
        self.structure = plan.structure

    def arena_bytes(self, beside: int = 0) -> int:
        """Return how large a new arena should be. Objects may have grown: see :meth:`stage`.

        Args:
            beside: room for what the snapshot's description gets besides, see :meth:`blueprint`.

        Raises:
            CheckpointError: an object cannot be saved.
        """
        plan = self._plan
        if plan.others_bytes is None:
            with collection_paused():
                plan.others_bytes = items.others_bytes(plan.laid, self._resolve)
        return items.arena_bytes(plan.laid, plan.others_bytes, beside)

    def warm_up(self, arena: Arena) -> None:
        """Make an arena ready, so that the first copy into it takes no longer than others.

        Its pages are mapped, pinned where CUDA is in use, and what does not depend on values is
        written. What is in the arena counts for nothing afterwards.
        """
        warm_up(arena)
        items.prepare(self._plan.laid, arena)

    def stage(self, arena: Arena, beside: int = 0, arriving: list[Any] | None = None) -> Staged:
        """Copy the state into the arena: when this returns, its content is fixed.

        Calls ``arena.begin()`` before the first byte changes.

        Args:
            arena: where to.
            beside: see :meth:`arena_bytes`; there is room for it afterwards.
            arriving: see :func:`undaunted.checkpointing.memory.copy.copy_into`.

        Raises:
            ArenaTooSmallError: nothing was copied; it says how large the arena must be.
            CheckpointError: an object cannot be saved; nothing was copied.
        """
        try:
            with collection_paused():
                files = items.stage_items(self._plan.laid, self._resolve, arena, beside, arriving)
        except (CheckpointError, OSError):
            raise
        except Exception as error:
            raise CheckpointError(
                f"the state cannot be copied: {type(error).__name__}: {error}"
            ) from error
        self._plan.others_bytes = sum(place.length for file in files for place in file.others)
        report = msgspec.msgpack.encode([[tuple(p) for p in file.others] for file in files])
        damage = None
        if self._content is not None:
            laid, content = self._plan.laid, self._content
            damage = items.watch(laid, files, self._resolve, arena, content)
        return Staged([file.image for file in files], report, damage)

    def blueprint(self) -> bytes:
        """Return what another process would make the metadata from; empty but on rank 0."""
        return b"" if self._plan.overall is None else self._plan.overall.draw()

    def _resolve(self, item: WriteItem) -> torch.Tensor | io.BytesIO:
        return self._written.resolve(self._planner, item)

    def metadata(self, reports: Sequence[bytes]) -> bytes:
        """Return the content of ``.metadata``; on rank 0 only.

        Args:
            reports: ``Staged.report`` of all ranks, in their order.
        """
        if self._plan.overall is None:
            raise ValueError("only rank 0 knows the metadata")
        return self._plan.overall.encode(reports)


class Saver:
    """Plans saves together with the savers of all other ranks."""

    def __init__(
        self,
        agreement: Agreeing,
        planner_factory: Callable[[], SavePlanner] = DefaultSavePlanner,
        *,
        refuse_differing: bool = True,
        certifies: bool = False,
    ) -> None:
        """Nothing is done yet.

        Args:
            agreement: of all ranks that save.
            planner_factory: makes a planner for each save.
            refuse_differing: refuse a state of which ranks have different content under one name;
                else warn once.
            certifies: whether saves will be certified, see :meth:`plan`.
        """
        self._agreement = agreement
        self._factory = planner_factory
        self._refuse_differing = refuse_differing
        self._certifies = certifies
        self._differing: set[str] = set()  # that was warned of, on rank 0
        self._plan: _CurrentPlan | None = None
        self._number = 0
        self._written = WrittenValues()
        self._structures: list[_Structure] = []

    def plan(
        self,
        state_dict: dict[str, Any],
        timeout_s: float,
        what: str = "save",
        *,
        certify: bool = False,
    ) -> Planned:
        """Decide with all ranks what each one writes; all call this for the same save.

        Args:
            state_dict: of any nesting; objects with a ``state_dict`` method are asked for theirs.
            timeout_s: for each of at most two agreements.
            what: is saved, for messages; ranks that do not say the same are told so.
            certify: compare the content of what several ranks have; the same on all ranks.

        Raises:
            SaveError: a rank's state cannot be planned, or a rank did not answer.
        """
        planner = self._factory()
        mine: bytes | Failure
        cause: Exception | None = None
        content: sameness.Digests | None = None
        try:
            with collection_paused():
                local, structure = self._look(planner, state_dict)
                number = 0 if self._plan is None else self._plan.number
                values = self._values(planner)
                replicas: dict[int, bytes] = {}
                if certify and self._plan is not None and structure == self._plan.mine:
                    content = self._plan.replicas.digests(planner)
                    replicas = self._plan.replicas.of_groups(content)
                mine = msgspec.msgpack.encode(_Structure(number, structure, values, replicas))
        except Exception as error:  # noqa: BLE001 - all ranks are told, and this one raises as well
            mine, cause = Failure.of(error), error
        try:
            verdict = self._agreement.round(what, mine, self._compare, timeout_s)
        except CheckpointError as told:
            raise told from cause
        if verdict == _REUSE and self._plan is not None:
            planner.finish_plan(self._plan.final)
        else:
            content = self._plan_anew(
                planner, local, structure, state_dict, timeout_s, what, certify=certify
            )
        assert self._plan is not None
        return Planned(self._plan, planner, self._written, content if certify else None)

    def _look(
        self, planner: SavePlanner, state_dict: dict[str, Any]
    ) -> tuple[SavePlan | None, bytes]:
        """Return the fingerprint of the state, and the local plan where one was made for it."""
        plain = states.plain(state_dict)
        if isinstance(planner, DefaultSavePlanner) and not plain.nested:
            planner.flatten_sharded_tensors = False  # a walk through all, for nothing
        with states.collisions_named():
            planner.set_up_planner(plain.content, StorageMeta(), self._agreement.rank == 0)
        if _flattens(planner):
            planner.mappings.update(plain.noted.entries)
        if _plans_by_default(planner):
            with torch.no_grad():  # else DTensors make nodes of a graph
                structure = states.named(plan_codec.fingerprint, planner.state_dict)
            if structure is not None:
                noted = msgspec.msgpack.encode(list(plain.noted.entries))
                return None, plan_codec.digest(structure + noted)
        local, encoded = _local_plan(planner)
        return local, plan_codec.digest(encoded)

    def _compare(self, encoded: Sequence[bytes]) -> bytes:
        """On rank 0: whether the plan in use fits every rank, and ranks have the same values."""
        overall = None if self._plan is None else self._plan.overall
        now = self._structures = [msgspec.msgpack.decode(one, type=_Structure) for one in encoded]
        fits = overall is not None and overall.structures == [(s.plan, s.structure) for s in now]
        same = sameness.equal(structure.values for structure in now)
        replicas = sameness.equal(structure.replicas for structure in now)
        return _REUSE if fits and same and replicas else _ANEW

    def _values(self, planner: SavePlanner) -> dict[int, bytes]:
        if self._plan is None or not isinstance(planner, DefaultSavePlanner):
            return {}
        return self._plan.groups.digests(planner.state_dict)

    def _content(
        self, local: SavePlan, planner: SavePlanner, state_dict: dict[str, Any]
    ) -> sameness.Content:
        if self._agreement.world_size == 1:
            return sameness.Content()
        with torch.no_grad():  # as above
            return sameness.content_of(local, planner, state_dict)

    def _plan_anew(
        self,
        planner: SavePlanner,
        local: SavePlan | None,
        structure: bytes,
        state_dict: dict[str, Any],
        timeout_s: float,
        what: str,
        *,
        certify: bool,
    ) -> sameness.Digests:
        self._plan = None
        mine: bytes | Failure
        cause: Exception | None = None
        overall: list[_GlobalPlan] = []
        try:
            with collection_paused():
                if local is None:
                    local, encoded = _local_plan(planner)
                else:
                    encoded = plan_codec.encode_plan(local)
                content = self._content(local, planner, state_dict)
            mine = msgspec.msgpack.encode(_Proposal(encoded, content))
            self._written.check(planner, local)
        except Exception as error:  # noqa: BLE001 - as above
            mine, cause = Failure.of(error), error

        def decide(plans: Sequence[bytes]) -> list[bytes]:
            with collection_paused():
                decisions, known = self._decide(planner, plans, certify=certify)
            overall.append(known)
            return [msgspec.msgpack.encode(decision) for decision in decisions]

        try:
            verdict = self._agreement.scatter(what, mine, decide, timeout_s)
        except CheckpointError as told:
            raise told from cause
        assert local is not None
        decision = msgspec.msgpack.decode(verdict, type=_Decision)
        decided = plan_codec.decode_part(local, decision.part)
        final = planner.finish_plan(decided)
        if final.items != decided.items:
            raise CheckpointError(
                f"{type(planner).__name__}.finish_plan changes which items are written: that is "
                "not supported, do it in create_global_plan"
            )
        known = overall[0] if overall else None
        laid = known.files[0] if known else metadata_format.lay_out(self._agreement.rank, final)
        groups = sameness.groups_of(local, decision.apart)
        replicas = sameness.Replicas.of(local, content, decision.replicas)
        self._plan = _CurrentPlan(
            decision.number, decision.structure, structure, final, laid, known, groups, replicas
        )
        return sameness.digests_of(local, content)

    def _decide(
        self, planner: SavePlanner, encoded: Sequence[bytes], *, certify: bool
    ) -> tuple[list[_Decision], _GlobalPlan]:
        self._number += 1
        proposals = [msgspec.msgpack.decode(one, type=_Proposal) for one in encoded]
        local = [plan_codec.decode_plan(one.plan) for one in proposals]
        contents = [one.content for one in proposals]
        sameness.check_own(local, contents)
        sameness.check_plans(local)
        sameness.check_whole(local)
        sameness.check_content(
            local,
            contents,
            self._differing,
            refuse=self._refuse_differing or certify,
            certify=certify,
        )
        # a list of its own: a planner may change it, as that of torch 2.6 did
        final, overall = planner.create_global_plan(list(local))
        pairs = zip(local, final, strict=True)
        parts = [plan_codec.encode_part(mine, decided) for mine, decided in pairs]
        structures = [one.structure for one in self._structures]
        planned = [(self._number, structure) for structure in structures]
        apart = sameness.grouped(local, self._differing)
        replicas, compared = sameness.replicated(local, contents, self._differing)
        if not self._certifies:
            replicas = [{} for _ in local]
        files = [metadata_format.lay_out(rank, plan) for rank, plan in enumerate(final)]
        structure = plan_codec.digest(b"".join(structures)).hex()
        decisions = [
            _Decision(self._number, structure, *of_rank)
            for of_rank in zip(parts, apart, replicas, strict=True)
        ]
        return decisions, _GlobalPlan(planned, overall, files, compared=compared)


def _flattens(planner: SavePlanner) -> TypeGuard[DefaultSavePlanner]:
    return isinstance(planner, DefaultSavePlanner) and planner.flatten_state_dict


def _local_plan(planner: SavePlanner) -> tuple[SavePlan, bytes]:
    """Return the plan of this rank, also encoded; what cannot be planned is named."""

    def planned(_: object) -> tuple[SavePlan, bytes]:
        with packed.planned_as_plain(planner) if _flattens(planner) else nullcontext():
            plan = planner.create_local_plan()
        packed.check_loadable(packed.mark(plan.items, planner))
        return plan, plan_codec.encode_plan(plan)

    if not _flattens(planner):
        return planned(None)
    states.check_tensors(planner.state_dict)
    return states.named(planned, planner.state_dict, _planned_alone)


def _planned_alone(flat: dict[str, Any]) -> None:
    plan_codec.encode_plan(create_default_local_save_plan(flat, is_coordinator=True))


def _plans_by_default(planner: SavePlanner) -> bool:
    """Return whether the plan follows from the flat state alone, which may be compared instead."""
    return isinstance(planner, DefaultSavePlanner) and all(
        getattr(type(planner), name) is getattr(DefaultSavePlanner, name)
        for name in ("create_local_plan", "create_global_plan", "finish_plan")
    )
