"""The `Detector` in one process; several are in test_ranks.py."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest

from undaunted.attribution.straggler import CallableId, Detector, Statistic, detector
from undaunted.attribution.straggler.detector import ReportInterval

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Clock:
    """In place of the module time of the detector."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter_ns(self) -> int:
        return round(self.now * 1e9)

    def perf_counter(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


TIME = Clock()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(detector, "time", TIME)
    return TIME


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(detector, "device", lambda: None)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.delenv("RANK", raising=False)
    yield
    Detector.shutdown()


@pytest.fixture
def running(clock: Clock) -> Clock:
    Detector.initialize()
    return clock


def take(clock: Clock, seconds: float, name: str | None = "a", **options: Any) -> None:
    with Detector.detection_section(name, **options):
        clock.now += seconds


def report() -> Any:
    made = Detector.generate_report()
    assert made is not None
    return made


def test_there_are_no_instances() -> None:
    with pytest.raises(RuntimeError, match="Detector"):
        Detector()


@pytest.mark.parametrize(
    "call",
    [
        Detector.detection_section,
        Detector.generate_report,
        Detector.generate_report_if_interval_elapsed,
        functools.partial(Detector.wrap_callables, []),
    ],
)
def test_nothing_works_before_it_is_initialized(call: Callable[[], Any]) -> None:
    with pytest.raises(RuntimeError, match="initialize"):
        call()
    assert not Detector.initialized


def test_it_is_initialized_once() -> None:
    Detector.initialize()
    with pytest.raises(AssertionError, match="shutdown"):
        Detector.initialize()
    Detector.shutdown()
    Detector.shutdown()
    Detector.initialize()
    assert Detector.initialized


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"scores_to_compute": ["gpu"]}, "'gpu'"),
        ({"scores_to_compute": "relative"}, "'relative'"),
        ({"profiling_interval": 0}, "profiling_interval is 0"),
        ({"report_time_interval": 0}, "report_time_interval is 0"),
        ({"report_time_interval": -1}, "report_time_interval is -1"),
        ({"report_time_interval": "60"}, "report_time_interval is '60'"),
        ({"report_time_interval": float("nan")}, "report_time_interval is nan"),
        ({"report_time_interval": float("inf")}, "report_time_interval is inf"),
        ({"report_time_interval": 10**400}, "report_time_interval is 1000"),
        ({"reference": ["best"]}, "reference is"),
        ({"reference": "mean"}, "'mean'"),
        ({"scores_to_compute": 5}, "has .5."),
        ({"scores_to_compute": [[]]}, "has ..."),
        ({"profiling_interval": "x"}, "profiling_interval is 'x'"),
        ({"profiling_interval": 1.5}, "profiling_interval is 1.5"),
        ({"profiling_interval": True}, "profiling_interval is True"),
        ({"gather_on_rank0": "x"}, "gather_on_rank0 is 'x'"),
        ({"report_time_interval": None}, "report_time_interval is None"),
        ({"node_name": 5}, "node_name is 5"),
        ({"role": "\udcff"}, "role is"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Detector.initialize(**arguments)
    assert not Detector.initialized


def test_a_section_is_summarized_in_milliseconds_and_the_device_in_microseconds(
    running: Clock,
) -> None:
    for seconds in (0.004, 0.001, 0.002, 0.003):
        take(running, seconds)
    made = report()
    assert made.local_section_summaries["a"][Statistic.MED] == pytest.approx(2)
    assert made.local_kernel_summaries["a"][Statistic.MED] == pytest.approx(2500)
    assert made.gpu_relative_perf_scores == {0: 1.0}
    assert made.section_relative_perf_scores == {"a": {0: 1.0}}
    assert made.rank == 0
    assert made.gather_on_rank0
    assert not report().local_section_summaries, "a report begins anew"


def test_the_name_is_the_place_of_the_with_statement(running: Clock) -> None:
    take(running, 1, None)
    with Detector.detection_section():
        running.now += 1
    first, second = report().local_section_summaries
    file, _, line = second.rpartition(":")
    assert file == __file__
    assert line.isdecimal()
    assert first != second


def test_an_exception_in_a_section_is_not_timed(running: Clock) -> None:
    take(running, 1)
    with contextlib.suppress(KeyError), Detector.detection_section("a"):
        running.now += 100
        raise KeyError
    assert report().local_section_summaries["a"][Statistic.MAX] == 1000


def test_sections_inside_each_other(running: Clock) -> None:
    with Detector.detection_section("a"), Detector.detection_section("a"):
        running.now += 1
        take(running, 2, "b")
    made = report().local_section_summaries
    assert made["a"][Statistic.NUM] == 2
    assert made["a"][Statistic.MIN] == 3000
    assert made["b"][Statistic.MIN] == 2000


@pytest.mark.parametrize(
    ("name", "error"), [(5, TypeError), (b"a", TypeError), ([], TypeError), ("\udcff", ValueError)]
)
def test_a_name_that_no_report_could_send_is_refused_at_once(
    running: Clock, name: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        Detector.detection_section(name)
    take(running, 1, "good")
    assert set(report().local_section_summaries) == {"good"}


def test_every_so_many_entries_one_is_timed(clock: Clock) -> None:
    Detector.initialize(profiling_interval=3)
    for seconds in range(1, 8):
        take(clock, seconds)
    summary = report().local_section_summaries["a"]
    assert summary[Statistic.NUM] == 3
    assert summary[Statistic.MED] == 4000, "the first, the fourth, the seventh"


def test_a_section_that_is_not_on_the_device(running: Clock) -> None:
    take(running, 1, "host", profile_cuda=False)
    take(running, 1, "device")
    made = report()
    assert set(made.local_section_summaries) == {"host", "device"}
    assert set(made.local_kernel_summaries) == {"device"}


def test_a_section_is_bounded(running: Clock) -> None:
    for seconds in range(10_000):
        take(running, seconds)
    assert report().local_section_summaries["a"][Statistic.NUM] == 8192


def test_so_are_their_names(running: Clock, caplog: pytest.LogCaptureFixture) -> None:
    for step in range(3000):
        take(running, 1, f"step {step}")
    assert len(report().local_section_summaries) == 1024
    assert len(caplog.records) == 1
    assert "step 1024" in caplog.text


def test_a_rank_is_compared_with_its_own_best(running: Clock) -> None:
    take(running, 1)
    assert report().gpu_individual_perf_scores == {0: 1.0}
    take(running, 2)
    made = report()
    assert made.gpu_individual_perf_scores == {0: 0.5}
    assert made.section_individual_perf_scores == {"a": {0: 0.5}}
    assert {one.rank for one in made.identify_stragglers()["straggler_gpus_individual"]} == {0}


@pytest.mark.parametrize(
    ("scores", "has"),
    [
        ("all", ("relative", "individual")),
        (["relative_perf_scores"], ("relative",)),
        (["individual_perf_scores"], ("individual",)),
    ],
)
def test_scores_that_are_not_wanted_are_empty(clock: Clock, scores: Any, has: Any) -> None:
    Detector.initialize(scores, node_name="here")
    take(clock, 1)
    made = report()
    for kind in ("relative", "individual"):
        assert bool(getattr(made, f"gpu_{kind}_perf_scores")) == (kind in has)
        assert bool(getattr(made, f"section_{kind}_perf_scores")) == (kind in has)
    assert made.rank_to_node == {0: "here"}


def test_ranks_without_a_process_group(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    Detector.initialize()
    take(clock, 1)
    with pytest.raises(RuntimeError, match="WORLD_SIZE is 2"):
        Detector.generate_report()
    Detector.shutdown()
    Detector.initialize(["individual_perf_scores"], gather_on_rank0=False)
    take(clock, 1)
    assert report().gpu_individual_perf_scores == {1: 1.0}


def test_reports_of_the_interval(clock: Clock) -> None:
    Detector.initialize(report_time_interval=10)
    made = []
    for step in range(1, 41):
        take(clock, 1)
        if Detector.generate_report_if_interval_elapsed() is not None:
            made.append(step)
        assert Detector.is_interval_elapsed() == (made[-1:] == [step])
    assert made == [20, 30, 40]


# --- callables -----------------------------------------------------------------------------------


class Base:
    def method(self, seconds: float) -> str:
        TIME.now += seconds
        return "done"

    @staticmethod
    def static(seconds: float) -> float:
        TIME.now += seconds
        return seconds

    @classmethod
    def of_class(cls, seconds: float) -> str:
        TIME.now += seconds
        return cls.__name__


class Child(Base): ...


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("owner", [Base, Child])
def test_attributes_of_classes_are_replaced_and_restored(owner: Any) -> None:
    before = dict(vars(owner))
    ids = [CallableId(owner, name) for name in ("method", "static", "of_class")]
    Detector.wrap_callables(ids)
    assert Child().method(1) == "done"
    assert Child.static(seconds=2) == Child().static(2) == 2
    assert Child.of_class(3) == Child().of_class(3) == "Child"
    names = [f"{__name__}.{owner.__name__}.{one}" for one in ("method", "static", "of_class")]
    assert list(report().local_section_summaries) == names
    Detector.restore_original_callables()
    assert dict(vars(owner)) == before
    assert Child.of_class(0) == "Child"
    assert not report().local_section_summaries


@pytest.mark.usefixtures("running")
def test_attributes_of_objects_and_modules() -> None:
    module = types.ModuleType("some.module")
    module.function = Base.static  # type: ignore[attr-defined]
    one = Child()
    Detector.wrap_callables([CallableId(one, "method"), CallableId(module, "function")])
    one.method(1)
    Child().method(1)
    module.function(2)
    kept = one.method
    summaries = report().local_section_summaries
    assert set(summaries) == {"Child.method", "some.module.function"}
    assert summaries["Child.method"][Statistic.NUM] == 1
    Detector.shutdown()
    assert "method" not in vars(one)
    assert kept(1) == "done", "also a wrapper that somebody has kept"


@pytest.mark.usefixtures("running")
def test_all_or_none_are_wrapped() -> None:
    one = Child()
    one.name = "text"  # type: ignore[attr-defined]
    for bad, error in (("name", TypeError), ("nothing", AttributeError)):
        with pytest.raises(error, match=bad):
            Detector.wrap_callables([CallableId(one, "method"), CallableId(one, bad)])
    assert "method" not in vars(one)


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("bad", [5, None, ["text"], [CallableId(1, 2)]])  # type: ignore[arg-type]
def test_what_is_no_callable_id_is_named(bad: Any) -> None:
    with pytest.raises(TypeError, match="is no CallableId"):
        Detector.wrap_callables(bad)


def test_further_fields_of_a_callable_are_taken() -> None:
    assert CallableId(Child(), "f", None, None, ("a",)) != CallableId(Child(), "f")
    one = CallableId(obj=Child, name="f", arg_filter_fn=None, extra_args_fn=None, ignored_args=())
    assert str(one) == f"{__name__}.Child.f"


# --- when a report is due ------------------------------------------------------------------------


class Steps:
    """A loop whose steps take some time."""

    def __init__(self, seconds: float, least: int = 1) -> None:
        self.interval = ReportInterval(seconds, least)
        self.now = 0.0
        self.step = 0
        self.asked = 0
        self.greatest = 0.0

    def agree(self, value: float) -> float:
        self.asked += 1
        return max(value, self.greatest)

    def due(self, number: int, seconds: float) -> list[int]:
        found = []
        for _ in range(number):
            self.now += seconds
            self.step += 1
            if self.interval.step(self.now, self.agree):
                found.append(self.step)
        return found


def test_seventeen_steps_are_measured_first() -> None:
    steps = Steps(5)
    assert steps.due(16, 1) == []
    assert steps.asked == 0
    assert steps.due(20, 1) == [20, 25, 30, 35]
    assert steps.asked == 5, "once for each report, and once before"


def test_steps_that_become_slower_are_counted_anew() -> None:
    steps = Steps(100)
    assert steps.due(100, 1) == [100]
    assert steps.due(200, 10) == [200, *range(210, 301, 10)]


def test_steps_that_become_faster_are_counted_anew() -> None:
    steps = Steps(100)
    assert steps.due(100, 10) == list(range(20, 101, 10))
    assert steps.due(310, 1) == [110, 210, 310, 410]


def test_the_slowest_decides_and_the_least_is_kept() -> None:
    steps = Steps(5)
    steps.greatest = 50
    assert steps.due(100, 1) == [50, 100]
    assert Steps(1, least=7).due(30, 60) == [21, 28]
    assert Steps(1).due(20, 60) == [17, 18, 19, 20]
    assert Steps(1e-3).due(20, 0) == [], "a clock that stands still"


# --- the import ----------------------------------------------------------------------------------


def test_it_is_used_without_torch() -> None:
    code = """
import sys
sys.modules["torch"] = None
from undaunted.attribution.straggler import Detector
Detector.initialize()
with Detector.detection_section("a"):
    pass
assert Detector.generate_report().section_relative_perf_scores == {"a": {0: 1.0}}
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
