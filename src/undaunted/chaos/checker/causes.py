"""From a difference to its usual cause and the remedy. Pure.

The first matching row of the table is taken. What a differing part equals instead is the best clue:
state as at the very beginning was not restored at all, state of another rank or another iteration
was saved or restored at the wrong place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import structs

from undaunted.base.text import name_ranks
from undaunted.chaos.checker.identity import BESIDE, ORDERLY_RANKS, base
from undaunted.chaos.checker.values import Defect
from undaunted.digests.record import AVERAGE, FORWARD, RNG, SCHEDULER, UPDATE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from undaunted.chaos.checker.identity import Identity, Pair
    from undaunted.chaos.checker.lives import ReferenceRun
    from undaunted.chaos.checker.values import Difference

_SAVE_RNG = (
    "Save the random state of every rank with the model, and restore it last, right before the "
    "next step:\n"
    '    saved["rng"] = torch.get_rng_state()   # and those of numpy, random, CUDA where used\n'
    '    torch.set_rng_state(saved["rng"])'
    "\nWith undaunted's Checkpointer, put RandomState() into the state."
)
_OWN_GENERATOR = (
    "\nThe iterator of a DataLoader draws from it as well; give it another generator:\n"
    "    loader = DataLoader(dataset, generator=torch.Generator())"
)
_RESTORE_DATA = (
    "Make the batch a function of seed and step, or restore the sampler before the iterator is "
    "made:\n"
    "    sampler.set_epoch(epoch)\n"
    "    batches = itertools.islice(loader, step_in_epoch, None)\n"
    "undaunted.data.Loader does it, also for random numbers that workers draw: docs/data.md."
)
_BUCKETS = (
    "probably by the order in which gradients are added up. DistributedDataParallel puts them into "
    "other buckets in its first step after a start than in all later ones. A sum over more "
    "than two ranks has other last bits in another order. That loses nothing. If it is not that, "
    "state which nobody looks at was not restored."
)
_SAME_BUCKETS = (
    "To see whether it is only that, run chaos with two ranks, or keep the first buckets:\n"
    "    DistributedDataParallel(model, find_unused_parameters=True)   # costs some time"
)
_DRAWN = (
    "The random state differs too: something drew from it after it was restored, as making the "
    "iterator of a DataLoader does."
)
_NOT_RESTORED = "its state is not in the checkpoint, or not loaded"


@dataclass(frozen=True)
class Clue:
    """The facts about a difference.

    Attributes:
        difference: the difference.
        fresh: whether it is there right after the restart.
        first: first iteration of the undisturbed run.
        of_rank: for each part, another rank that had it in the undisturbed run at this moment.
        world_size: ranks of the undisturbed run.
        further: whether it is of a model that is not the first one which the step uses.
        random: whether the random state differed before, without being the cause.
        accumulated: whether the run began again between two steps of one update.
    """

    difference: Difference
    fresh: bool
    first: int
    of_rank: dict[str, int]
    world_size: int
    further: bool = False
    random: bool = False
    accumulated: bool = False

    def kinds(self) -> set[str]:
        """Parts that differ: ``parameters``, ``rng``, ..., and names that the script gave."""
        return {base(name) for name in self.difference.parts}

    def name(self, kind: str) -> str:
        """The first part of a kind, as the record calls it."""
        names = [name for name in self.difference.parts if base(name) == kind]
        return kind if kind in names else names[0]

    def equal_to(self, kind: str) -> int | None:
        """The iteration of the undisturbed run that had these parts; None if none."""
        return self.difference.equals.get(self.name(kind))

    def anew(self, kind: str) -> bool:
        """Return whether a part is as it was at the very beginning."""
        began = self.equal_to(kind) == self.first
        return began and self.difference.iteration != self.first

    def rank_of(self, kind: str) -> int | None:
        """The other rank that had these parts."""
        return self.of_rank.get(self.name(kind))

    def rng(self) -> str:
        """``the random state (rng)``, and of which generators."""
        names = [name for name in self.difference.parts if base(name) == RNG]
        if RNG in names:
            return "the random state (rng)"
        return f"the random state of {' and '.join(n.rpartition('.')[0] for n in names)}"

    def parameters(self) -> str:
        """``the parameters``, and of which model."""
        return "the parameters" + (
            " of a further model (not the one that the step uses first)" if self.further else ""
        )

    def where(self) -> str:
        """``On rank 1 at step 50, right after the restart``."""
        ranks = self.difference.ranks or (self.difference.rank,)
        who = name_ranks(ranks)
        if self.difference.iteration < 0:
            return f"On {who}, right after the restart"
        when = f"at step {self.difference.iteration}"
        return f"On {who} {when}, right after the restart" if self.fresh else f"On {who} {when}"


def explain(found: Identity, lines: Mapping[int, ReferenceRun]) -> list[Defect]:
    """Say what usually causes a difference.

    Args:
        found: a comparison that differs.
        lines: of the undisturbed run.
    """
    if found.state == "random":
        return [_random_alone(_cause(found, lines))]
    if found.random is not None:
        return [_cause(found, lines), _random_alone(_cause(found.random, lines))]
    return [_cause(found, lines)]


def _random_alone(cause: Defect) -> Defect:
    """The finding about a random state from which nothing that was recorded follows."""
    text = f"{cause.text} No data, gradients or parameters differ because of it in this run."
    return structs.replace(cause, severity="yellow", text=text)


def _cause(found: Identity, lines: Mapping[int, ReferenceRun]) -> Defect:
    assert found.difference is not None
    line = lines[found.difference.rank]
    clue = Clue(
        difference=found.difference,
        fresh=found.fresh,
        first=line.first or 0,
        of_rank=_other_ranks(found.pair, lines) if found.pair is not None else {},
        world_size=len(lines),
        further=found.pair is not None and found.pair.key.at == FORWARD and found.pair.key.n > 0,
        random=found.random is not None,
        accumulated=_is_in_update(found, line),
    )
    if found.pair is not None and found.pair.record.counted and _ahead_of_parameters(clue):
        return _not_loaded(clue, "the random state or the data goes on")
    kinds = clue.kinds()
    for kind, rule in _RULES:
        if kind in kinds:
            return rule(clue)
    return _named(clue)


def _is_in_update(found: Identity, line: ReferenceRun) -> bool:
    """Whether the first thing that was compared lies between the first step of an update and it."""
    if found.pair is None or found.pair.key.at != UPDATE or found.first is None:
        return False
    begun: int | None = None
    for key in sorted(line.order, key=line.order.__getitem__):
        if key == found.pair.key:
            break
        if key.at == UPDATE:
            begun = None
        elif key.at == FORWARD and begun is None:
            begun = key.iteration
    return begun is not None and begun < found.first


def _other_ranks(pair: Pair, lines: Mapping[int, ReferenceRun]) -> dict[str, int]:
    found: dict[str, int] = {}
    for rank, line in lines.items():
        there = line.by_key.get(pair.key)
        if rank == pair.rank or there is None:
            continue
        for name in pair.differing():
            own = pair.reference.parts[name]
            if there.parts.get(name) == pair.record.parts[name] != own:
                found.setdefault(name, rank)
    return found


def _parameters(clue: Clue) -> Defect:
    if clue.difference.iteration < 0:
        return Defect(
            "parameters-unknown",
            "red",
            f"{clue.where()}, the parameters are none that the undisturbed run ever had: the model "
            "was set up anew without the same seed, or only a part of it was loaded.",
            "Load the checkpoint before the first step, and let missing keys be errors:\n"
            '    model.load_state_dict(saved["model"], strict=True)',
        )
    if clue.difference.at == UPDATE:
        return _optimizer(clue)
    instead = clue.equal_to("parameters")
    if clue.anew("parameters"):
        return _not_loaded(clue, "the count of steps goes on")
    if instead is not None and instead != clue.difference.iteration:
        return Defect(
            "counter-and-parameters-apart",
            "red",
            f"{clue.where()}, {clue.parameters()} are those of step {instead}: the count of steps "
            "and the model come from different checkpoints, or the count that is saved is off by "
            f"{abs(clue.difference.iteration - instead)}.",
            "Save the number of the next step in the same file as the model, after the update:\n"
            '    saved = {"model": model.state_dict(), "next_step": step + 1}',
        )
    if not clue.fresh:
        return _computation(clue)
    return Defect(
        "parameters-differ",
        "red",
        f"{clue.where()}, {clue.parameters()} are none of the undisturbed run at that point. They "
        "are a mixture (of a part of the keys, or of different checkpoints), or "
        "the checkpoint was taken in the middle of an update.",
        "Write each checkpoint under a new name, make it visible by one rename when it is "
        "complete, and load with strict=True.",
    )


def _not_loaded(clue: Clue, meanwhile: str) -> Defect:
    return Defect(
        "checkpoint-not-loaded",
        "red",
        f"{clue.where()}, {clue.parameters()} are those of the very beginning, while {meanwhile}: "
        "the model is not loaded from the checkpoint.",
        "Load what you have saved before the first step, on every rank:\n"
        '    model.load_state_dict(saved["model"])',
    )


def _ahead_of_parameters(clue: Clue) -> bool:
    """Whether a script that was placed by its parameters has other state of a later step."""
    if clue.difference.iteration != clue.first or not clue.fresh:
        return False
    return all((clue.equal_to(base(name)) or 0) > clue.first for name in clue.difference.parts)


def _buffers(clue: Clue) -> Defect:
    return Defect(
        "buffers-not-restored",
        "red",
        f"{clue.where()}, buffers differ (running statistics of BatchNorm, counters, masks) while "
        "the parameters do not: only the parameters are saved, or buffers are not persistent.",
        "Save the whole module, and register what must survive:\n"
        '    saved["model"] = model.state_dict()        # not dict(model.named_parameters())\n'
        '    self.register_buffer("mean", mean, persistent=True)',
    )


def _optimizer(clue: Clue) -> Defect:
    how = "its moments are those of the very beginning" if _is_anew(clue, "optimizer") else ""
    if clue.difference.at == UPDATE:
        how = "the same gradients on the same parameters gave another update"
    return Defect(
        "optimizer-not-restored",
        "red",
        f"{clue.where()}, the optimizer differs{': ' + how if how else ''}. Its state (moments, "
        "number of updates), the learning rate or its schedule is not in the checkpoint, not "
        "loaded, or was taken before the update.",
        "Save and load the optimizer and what changes its learning rate:\n"
        '    saved |= {"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}\n'
        '    optimizer.load_state_dict(saved["optimizer"])',
    )


def _rng(clue: Clue) -> Defect:
    data = "data" in clue.kinds()
    rank, instead = clue.rank_of("rng"), clue.equal_to("rng")
    if clue.anew("rng"):
        elsewhere = data and clue.equal_to("data") not in (None, clue.first)
        also = ", and so is what was drawn from it: the data" if data and not elsewhere else ""
        more = f" The data {_order(clue)[1]}." if elsewhere else ""
        return Defect(
            "rng-not-restored",
            "red",
            f"{clue.where()}, {clue.rng()} is that of the very beginning{also}: it is "
            f"seeded again and not restored.{more}",
            f"{_SAVE_RNG}\n{_RESTORE_DATA}" if elsewhere else _SAVE_RNG,
        )
    if rank is not None:
        return Defect(
            "rng-of-another-rank",
            "red",
            f"{clue.where()}, {clue.rng()} is that of rank {rank}: one rank's state was "
            "saved and all ranks load it.",
            "Save the random state of every rank under its own name:\n"
            '    saved[f"rng-{rank}"] = torch.get_rng_state()',
        )
    later = instead is not None and instead > clue.difference.iteration
    if later and data:
        finding = _data(clue)
        return structs.replace(finding, text=f"{finding.text} {_DRAWN}")
    if instead is not None and instead != clue.difference.iteration and not later:
        return Defect(
            "rng-of-another-step",
            "red",
            f"{clue.where()}, {clue.rng()} is that of step {instead}: it was saved at "
            "another moment than the parameters.",
            "Take all parts of a checkpoint at the same point of the loop, after the update.",
        )
    if data and _is_anew(clue, "data"):
        return _data(clue)
    if data and RNG in clue.difference.parts:
        return Defect(
            "iterator-made-after-restore",
            "red",
            f"{clue.where()}, the random state (rng) and the data both differ, and equal nothing "
            "of the undisturbed run: often the random state is restored before the iterator of "
            "the DataLoader is made, which draws from it.",
            "Make the iterator first, then restore the random state:\n"
            "    batches = iter(loader)\n"
            '    torch.set_rng_state(saved["rng"])\n'
            "With undaunted.data.Loader both come from the place in the data: docs/data.md.",
        )
    return Defect(
        "rng-not-restored",
        "red",
        f"{clue.where()}, {clue.rng()} is "
        + (f"that of step {instead}" if later else "none that the undisturbed run had")
        + (
            ": it is not restored, or something draws from it after it was, as making the "
            "iterator of a DataLoader does."
            if clue.fresh or later
            else ": something drew from it that did not in the undisturbed run."
        ),
        _SAVE_RNG + _OWN_GENERATOR,
    )


def _data(clue: Clue) -> Defect:
    key, what = _order(clue)
    return Defect(key, "red", f"{clue.where()}, the data {what}.", _RESTORE_DATA)


def _order(clue: Clue) -> tuple[str, str]:
    """Return the error in the order of the data: the key of its finding, and a text."""
    rank, instead = clue.rank_of("data"), clue.equal_to("data")
    key = "data-order-not-restored"
    what = "is in another order: it is shuffled with another seed"
    if clue.anew("data"):
        key = "sampler-starts-anew"
        what = "starts again with the very first batch: the sampler's position is not restored"
    elif rank is not None:
        key = "data-of-another-rank"
        what = f"is that of rank {rank}: something else than the rank chooses its part"
    elif instead is not None and instead != clue.difference.iteration:
        key = "data-at-another-position"
        what = (
            f"is that of step {instead}: batches are skipped or seen twice. The position within "
            "the epoch is not restored, batches that workers had fetched ahead count, or "
            "the position is saved before they are used"
        )
    elif not clue.fresh:
        key = "data-order-later"
        what = (
            "comes in another order from here on, as at the beginning of an epoch: the seed or "
            "the number of the epoch is not restored"
        )
    return key, what


def _computation(clue: Clue) -> Defect:
    many = clue.world_size > ORDERLY_RANKS
    seen = " but the random state, which no step draws from," if clue.random else ""
    what = "gradients" if "gradients" in clue.kinds() else base(clue.difference.parts[0])
    where = (
        f"{clue.where()}, the {what} differ although everything seen before them{seen} is equal: "
    )
    if clue.accumulated and what == "gradients":
        return Defect(
            "accumulated-gradients-not-saved",
            "red",
            f"{where}gradients that were accumulated since the last update are not in the "
            "checkpoint.",
            "Save after an update, or save the gradients too:\n"
            '    saved["gradients"] = [p.grad for p in model.parameters()]\n'
            '    for p, grad in zip(model.parameters(), saved["gradients"]): p.grad = grad',
        )
    if many and clue.fresh:
        return Defect("computation-differs", "yellow", where + _BUCKETS, _SAME_BUCKETS)
    return Defect(
        "computation-differs",
        "yellow" if many else "red",
        f"{where}state that is neither parameters, buffers, optimizer, random state nor data was "
        "not restored, such as another model or a generator of the script's own; or the "
        "computation itself is not deterministic.",
        "Save such state too. To see whether it is the computation:\n"
        "    torch.use_deterministic_algorithms(True)\n"
        "    torch.set_num_threads(1)",
    )


def _named(clue: Clue) -> Defect:
    name = clue.difference.parts[0]
    began = clue.difference.equals.get(name) == clue.first != clue.difference.iteration
    how = "is as at the very beginning" if began else "differs"
    return Defect(
        "state-not-restored",
        "red",
        f"{clue.where()}, {name!r} {how} while the parameters do not differ: it is not in the "
        "checkpoint or not loaded.",
        "Save and load it with the model.",
    )


def _is_anew(clue: Clue, kind: str) -> bool:
    return kind in clue.kinds() and clue.anew(kind)


def _explain_beside(part: str, where: str) -> Defect:
    """Return the finding about state that a helper of torch keeps beside model and optimizer.

    Args:
        part: one of `BESIDE`.
        where: on which ranks and when, as the beginning of a sentence.
    """
    if part == SCHEDULER:
        return Defect(
            "scheduler-not-restored",
            "red",
            f"{where}, the learning rate scheduler has counted another number of steps: "
            f"{_NOT_RESTORED}.",
            f"{_save(part)}\nOr make it with last_epoch=, the number that it had counted to.",
        )
    if part == AVERAGE:
        return Defect(
            "average-not-restored",
            "red",
            f"{where}, the averaged parameters (AveragedModel: EMA, SWA) differ while the model "
            f"does not: {_NOT_RESTORED}.",
            _save(part),
        )
    return Defect(
        "scaler-not-restored",
        "red",
        f"{where}, the GradScaler has another scale, or has counted other steps without overflow: "
        f"{_NOT_RESTORED}.",
        _save(part),
    )


def _save(part: str) -> str:
    return (
        "Save and load its state with the model:\n"
        f'    saved["{part}"] = {part}.state_dict()\n'
        f'    {part}.load_state_dict(saved["{part}"])'
    )


def _beside(kind: str) -> tuple[str, Callable[[Clue], Defect]]:
    return kind, lambda clue: _explain_beside(kind, clue.where())


_RULES: tuple[tuple[str, Callable[[Clue], Defect]], ...] = (
    ("gradients", _computation),
    ("parameters", _parameters),
    ("buffers", _buffers),
    ("optimizer", _optimizer),
    *map(_beside, BESIDE),
    ("rng", _rng),
    ("data", _data),
    ("loss", _computation),
)
