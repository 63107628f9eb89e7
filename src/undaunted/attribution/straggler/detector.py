"""The `Detector`: times sections of the program, and makes reports of how ranks compare."""

from __future__ import annotations

import functools
import inspect
import logging
import socket
import statistics
import sys
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from undaunted.attribution.straggler.report import (
    OwnBest,
    RankTimes,
    Reference,
    Report,
    Statistic,
    check,
    decode,
    encode,
    gathered,
    gpu_score,
    is_number,
    is_whole,
    kernel_summary,
    of_one_rank,
    section_scores,
    section_summary,
)
from undaunted.attribution.straggler.timing import DeviceClock, device
from undaunted.base import torch_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

_log = logging.getLogger("undaunted")

_RELATIVE = "relative_perf_scores"
_INDIVIDUAL = "individual_perf_scores"
_TIMES = 8192  # of a section, between two reports
_SECTIONS = 1024
_STEPS = 16  # whose median tells how many make up the time of an interval


@dataclass(frozen=True)
class CallableId:
    """An attribute that can be called: of a module, a class or an object.

    Attributes:
        obj: the module, class or object that has it.
        name: of the attribute.
        arg_filter_fn, extra_args_fn, ignored_args: taken, as NVRx has them, and not used.
    """

    obj: Any
    name: str
    arg_filter_fn: Any = None
    extra_args_fn: Any = None
    ignored_args: Any = None

    def __str__(self) -> str:
        if isinstance(self.obj, ModuleType):
            owner = self.obj.__name__
        elif isinstance(self.obj, type):
            owner = f"{self.obj.__module__}.{self.obj.__name__}"
        else:
            owner = type(self.obj).__name__
        return f"{owner}.{self.name}"


class Detector:
    """Times sections of the program on this rank, and compares ranks. One for each process.

    All methods are of the class. Between `initialize` and `shutdown` it times sections that are
    entered with `detection_section`, or by calls of functions given to `wrap_callables`. A report
    tells how the ranks compare since the report before.

    Raises:
        RuntimeError: somebody makes an instance.
    """

    initialized: ClassVar[bool] = False
    _run: ClassVar[_Run | None] = None
    _elapsed: ClassVar[bool] = False

    def __new__(cls) -> Detector:  # noqa: D102, PYI034
        raise RuntimeError(f"{cls.__name__} has class methods only: call {cls.__name__}.initialize")

    @classmethod
    def initialize(
        cls,
        scores_to_compute: str | Iterable[str] = "all",
        gather_on_rank0: bool = True,
        profiling_interval: int = 1,
        report_time_interval: float = 60,
        node_name: str | None = None,
        *,
        reference: Reference = "best",
        role: str = "",
    ) -> None:
        """Begin. Call it on every rank, with the same arguments but for the node and role.

        Args:
            scores_to_compute: "all", or some of "relative_perf_scores", which compare ranks, and
                "individual_perf_scores", which compare a rank with its own best.
            gather_on_rank0: reports are of all ranks, on rank 0 only; else of each rank by itself.
            profiling_interval: every so many entries of a section, one is timed.
            report_time_interval: about how often `generate_report_if_interval_elapsed` makes a
                report, seconds.
            node_name: shown in reports; by default the name of the host.
            reference: what a relative score compares with. "best": the best rank, and only in
                sections that all ranks have, as in NVRx. "peers": the median of the other ranks
                that have the section.
            role: ranks are compared with ranks of the same role only: "stage 0", say.

        Raises:
            AssertionError: there was no `shutdown` since the last time.
            ValueError: an argument is out of its range.
        """
        if cls._run is not None:
            raise AssertionError("Detector is initialized already: call Detector.shutdown first")
        scores = _scores(scores_to_compute)
        known = get_args(Reference)
        check(
            "gather_on_rank0", gather_on_rank0, isinstance(gather_on_rank0, bool), "True or False"
        )
        check_intervals(report_time_interval, profiling_interval)
        check("node_name", node_name, _can_be_sent(node_name or ""), "a text")
        check("role", role, _can_be_sent(role), "a text")
        check("reference", reference, reference in known, f"one of {known}")
        cls._run = _Run(
            relative=_RELATIVE in scores,
            individual=_INDIVIDUAL in scores,
            gather=gather_on_rank0,
            every=profiling_interval,
            interval=ReportInterval(report_time_interval, profiling_interval),
            node=node_name or socket.gethostname(),
            reference=reference,
            role=role,
        )
        cls._elapsed = False
        cls.initialized = True

    @classmethod
    def shutdown(cls) -> None:
        """End: forget all times, and undo `wrap_callables`. May be called at any time."""
        cls.restore_original_callables()
        cls._run = None
        cls.initialized = False

    @classmethod
    def detection_section(
        cls, name: str | None = None, profile_cuda: bool = True
    ) -> AbstractContextManager[None]:
        """Return a context whose time is taken, unless it is left by an exception.

        Args:
            name: of the section, the same on all ranks; by default file and line of the caller.
            profile_cuda: its time on the device is taken as well: on the current stream, from
                entry to exit. Without a device, its time counts as time of the device.

        Raises:
            RuntimeError: before `initialize`.
            TypeError, ValueError: the name is no text, or one that cannot be sent to other ranks.
        """
        run = cls._running()
        if name is None:
            caller = sys._getframe(1)  # noqa: SLF001
            name = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        section = (run.sections.get(name) if isinstance(name, str) else None) or run.add(name)
        section.entries += 1
        if (section.entries - 1) % run.every:
            return _NOTHING
        return _Entry(section, run.clock if profile_cuda else None, profile_cuda)

    @classmethod
    def wrap_callables(cls, callable_ids: Sequence[CallableId], profile_cuda: bool = True) -> None:
        """Make every call of the given attributes a section, named `str(CallableId)`.

        Raises:
            RuntimeError: before `initialize`.
            AttributeError, TypeError: there is no such attribute, or it cannot be called.
        """
        run = cls._running()
        callable_ids = list(callable_ids) if isinstance(callable_ids, Iterable) else [callable_ids]
        for one in callable_ids:
            if not isinstance(one, CallableId) or not isinstance(one.name, str):
                raise TypeError(f"{one!r} is no CallableId of an object and a name")
            function = getattr(one.obj, one.name)
            if not callable(function):
                raise TypeError(f"{one} cannot be called: it is a {type(function).__name__}")
        for one in callable_ids:
            run.originals.append(_replace(one, functools.partial(_section, str(one), profile_cuda)))

    @classmethod
    def restore_original_callables(cls) -> None:
        """Undo `wrap_callables`."""
        while cls._run is not None and cls._run.originals:
            cls._run.originals.pop()()

    @classmethod
    def generate_report(cls) -> Report | None:
        """Make a report of the sections since the last one; begin anew.

        A collective of all ranks when ranks are compared or gathered. Does not wait for the device:
        what it has not done yet is part of the next report.

        Returns:
            The report; None on ranks other than 0 when reports are gathered there.

        Raises:
            RuntimeError: before `initialize`; there are other ranks, and no process group.
        """
        return cls._running().report()

    @classmethod
    def generate_report_if_interval_elapsed(cls) -> Report | None:
        """Make a report when it is due; to be called once in each step, on every rank.

        A report is due after as many steps as take `report_time_interval` on the fastest rank, the
        same number on all ranks. It is found out after 17 steps, and anew with each report.
        """
        run = cls._running()
        agree = _greatest if run.relative or run.gather else float
        cls._elapsed = run.interval.step(time.monotonic(), agree)
        return run.report() if cls._elapsed else None

    @classmethod
    def is_interval_elapsed(cls) -> bool:
        """Return whether the last `generate_report_if_interval_elapsed` made a report."""
        return cls._elapsed

    @classmethod
    def _running(cls) -> _Run:
        if cls._run is None:
            raise RuntimeError("Detector is not initialized: call Detector.initialize first")
        return cls._run


def check_intervals(report_time_interval: float, profiling_interval: int) -> None:
    """Check these arguments of `Detector.initialize`.

    Raises:
        ValueError: one of them is out of its range.
    """
    time, every = report_time_interval, profiling_interval
    is_time = is_number(time) and 0 < time <= sys.float_info.max
    check("report_time_interval", time, is_time, "a finite number of seconds above 0")
    check("profiling_interval", every, is_whole(every) and every > 0, "a whole number, 1 or more")


def _can_be_sent(text: object) -> bool:
    try:
        return isinstance(text, str) and text.encode() is not None
    except UnicodeEncodeError:
        return False


def _scores(wanted: str | Iterable[str]) -> set[str]:
    known = {_RELATIVE, _INDIVIDUAL}
    if wanted == "all":
        return known
    scores = [wanted] if isinstance(wanted, str) or not isinstance(wanted, Iterable) else [*wanted]
    if unknown := [one for one in scores if one not in [*known]]:
        raise ValueError(f"scores_to_compute has {unknown}: give 'all' or some of {sorted(known)}")
    return set(scores)


class ReportInterval:
    """The steps that are due for a report: counted, not timed, so that all ranks agree.

    Args:
        seconds: time between reports.
        least: steps between reports, at least.
    """

    def __init__(self, seconds: float, least: int) -> None:
        self._seconds = seconds
        self._least = least
        self._step = 0
        self._due: int | None = None
        self._last: float | None = None
        self._times: deque[float] = deque(maxlen=_STEPS)

    def step(self, now: float, agree: Callable[[float], float]) -> bool:
        """Count a step that has ended; return whether a report is due.

        Args:
            now: monotonic clock, seconds.
            agree: returns the greatest number of all ranks. A collective: called after 17 steps,
                then once for each report.
        """
        if self._last is not None:
            self._times.append(now - self._last)
        self._last = now
        self._step += 1
        if self._due is None:
            if len(self._times) < _STEPS:
                return False
            steps = self._steps(agree)
            self._due = -(-self._step // steps) * steps
        if self._step < self._due:
            return False
        self._due = self._step + self._steps(agree)
        return True

    def _steps(self, agree: Callable[[float], float]) -> int:
        wanted = self._seconds / max(statistics.median(self._times), 1e-9)
        return int(max(agree(wanted), self._least, 1))


class _Section:
    """One section of the program: times since the last report."""

    __slots__ = ("device_times", "entries", "on_device", "times")

    def __init__(self) -> None:
        self.entries = 0
        self.times: deque[int] = deque(maxlen=_TIMES)  # ns
        self.device_times: deque[float] = deque(maxlen=_TIMES)  # µs
        self.on_device = False  # where there is no device: `times` count as times of one


class _Entry:
    """A section is entered and left, once."""

    __slots__ = ("_began", "_clock", "_device_began", "_section")

    def __init__(self, section: _Section, clock: DeviceClock | None, on_device: bool) -> None:
        self._section = section
        self._clock = clock
        section.on_device = on_device

    def __enter__(self) -> None:
        if self._clock is not None:
            self._device_began = self._clock.start()
        self._began = time.perf_counter_ns()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        took = time.perf_counter_ns() - self._began
        if kind is None:
            self._section.times.append(took)
        if self._clock is not None and self._device_began is not None:
            self._clock.stop(self._section.device_times, self._device_began, keep=kind is None)


class _Nothing:
    """A section that is not timed."""

    def __enter__(self) -> None: ...
    def __exit__(self, kind: object, error: object, trace: object) -> None: ...


_NOTHING = _Nothing()


class _Run:
    """What there is between `initialize` and `shutdown`."""

    def __init__(
        self,
        *,
        relative: bool,
        individual: bool,
        gather: bool,
        every: int,
        interval: ReportInterval,
        node: str,
        reference: Reference,
        role: str,
    ) -> None:
        self.relative = relative
        self.individual = individual
        self.gather = gather
        self.every = every
        self.interval = interval
        self.node = node
        self.reference: Reference = reference
        self.role = role
        found = device()
        self.clock = None if found is None else DeviceClock(found)
        self.sections: dict[str, _Section] = {}
        self.originals: list[Callable[[], None]] = []
        self._surplus: _Section | None = None
        self._best_sections = OwnBest()
        self._best_kernels = OwnBest()

    def add(self, name: str) -> _Section:
        """Return a section that is new; one that is in no report when there are too many.

        Raises:
            TypeError, ValueError: the name is no text, or one that cannot be sent to other ranks.
        """
        if not isinstance(name, str):
            raise TypeError(f"the name of a section is a text, not {name!r}")
        if not _can_be_sent(name):
            raise ValueError(f"the name of a section cannot be sent to other ranks: {name!r}")
        if len(self.sections) < _SECTIONS:
            return self.sections.setdefault(name, _Section())
        if self._surplus is None:
            self._surplus = _Section()
            _log.warning(
                "Section %r and others after it are in no straggler report: there are %d with "
                "other names. Give the same name to the same section of each step.",
                name,
                _SECTIONS,
            )
        return self._surplus

    def report(self) -> Report | None:
        """Make a report; begin anew."""
        began = time.perf_counter()
        own = torch_ranks.place()[0]
        sections, kernels = self._summaries()
        times = self._rank_times(own, sections, kernels)
        if self.relative or self.gather:
            _insist_on_group()
            ranks = decode(torch_ranks.gather_texts(encode(times)))
        else:
            ranks = [times]
        if self.gather and own != 0:
            return None
        scores = gathered(ranks, self.reference, self.relative, self.individual)
        if not self.gather:
            scores = of_one_rank(scores, own)
        return Report(
            **scores,
            local_section_summaries=sections,
            local_kernel_summaries=kernels,
            generate_report_elapsed_time=(time.perf_counter() - began) * 1e3,
            gather_on_rank0=self.gather,
            rank=own,
        )

    def _summaries(
        self,
    ) -> tuple[dict[str, dict[Statistic, float]], dict[str, dict[Statistic, float]]]:
        """Summarize the times of sections and those on the device, and forget them."""
        if self.clock is not None:
            self.clock.collect()
        sections, kernels = {}, {}
        for name, section in self.sections.items():
            times = _taken(section.times)
            device_times = _taken(section.device_times)
            if self.clock is None and section.on_device:
                device_times = [took / 1e3 for took in times]
            if times:
                sections[name] = section_summary([took / 1e6 for took in times])
            if device_times:
                kernels[name] = kernel_summary(device_times)
        return sections, kernels

    def _rank_times(
        self,
        rank: int,
        sections: dict[str, dict[Statistic, float]],
        kernels: dict[str, dict[Statistic, float]],
    ) -> RankTimes:
        medians = {name: one[Statistic.MED] for name, one in sections.items()}
        of_device = {
            name: (one[Statistic.MED], one[Statistic.NUM] * one[Statistic.AVG])
            for name, one in kernels.items()
        }
        best_sections = self._best_sections.references(medians)
        best_kernels = self._best_kernels.references(
            {name: median for name, (median, _) in of_device.items()}
        )
        return RankTimes(
            rank=rank,
            node=self.node,
            role=self.role,
            sections=medians,
            kernels=of_device,
            gpu_individual=gpu_score(of_device, best_kernels),
            sections_individual=section_scores(medians, best_sections),
        )


def _greatest(value: float) -> float:
    """Return the greatest value that any rank has given."""
    _insist_on_group()
    return float(max(torch_ranks.gather(value)))


def _insist_on_group() -> None:
    ranks = torch_ranks.place()[1]
    if ranks > 1 and not torch_ranks.is_distributed():
        raise RuntimeError(
            "Ranks cannot be compared before torch.distributed.init_process_group: WORLD_SIZE is "
            f"{ranks}. Call it first, or initialize the Detector with "
            "scores_to_compute=['individual_perf_scores'], gather_on_rank0=False."
        )


def _taken(times: deque[Any]) -> list[Any]:
    """Empty a queue that another thread may add to."""
    return [times.popleft() for _ in range(len(times))]


def _section(name: str, profile_cuda: bool) -> AbstractContextManager[None]:
    """Return a section, or nothing after `Detector.shutdown`, for a wrapper that somebody kept."""
    return Detector.detection_section(name, profile_cuda) if Detector.initialized else _NOTHING


def _replace(
    one: CallableId, section: Callable[[], AbstractContextManager[None]]
) -> Callable[[], None]:
    """Put a wrapper in place of an attribute; return what undoes it."""
    own = vars(one.obj) if hasattr(one.obj, "__dict__") else {}
    had = one.name in own
    static = own[one.name] if had else inspect.getattr_static(one.obj, one.name)
    kind = type(static) if isinstance(static, staticmethod | classmethod) else None
    is_class = isinstance(one.obj, type)
    function = static.__func__ if is_class and kind else getattr(one.obj, one.name)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with section():
            return function(*args, **kwargs)

    setattr(one.obj, one.name, kind(wrapper) if is_class and kind else wrapper)

    def undo() -> None:
        if had:
            setattr(one.obj, one.name, static)
        else:
            delattr(one.obj, one.name)

    return undo
