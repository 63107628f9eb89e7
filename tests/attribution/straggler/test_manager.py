"""The manager's lines, letter by letter, and what it does in a loop; ranks are in test_ranks.py."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

import pytest

from undaunted.attribution.straggler import (
    Detector,
    NVRxStragglerDetectionConfig,
    NVRxStragglerDetectionManager,
    StragglerId,
    manager,
)
from undaunted.attribution.straggler.report import Report

if TYPE_CHECKING:
    from collections.abc import Iterator

NODES = {rank: f"h100-{rank // 2}" for rank in range(12)}
SCORES = {0: 0.98, 1: 0.945, 2: 1.0, 3: 0.94, 4: 0.97, 5: 1.0}


@pytest.fixture(autouse=True)
def loop(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.delenv("RANK", raising=False)
    caplog.set_level("DEBUG", logger="megatron.bridge.NVRxStragglerDetection")
    yield
    Detector.shutdown()


def config(**options: Any) -> NVRxStragglerDetectionConfig:
    return NVRxStragglerDetectionConfig(**{"enabled": True, **options})


def test_the_worst_and_the_best_ranks() -> None:
    assert manager.score_lines(SCORES, NODES, 2) == (
        " Worst performing 2/6 ranks:\n"
        "  Rank=3 Node=h100-1 Score=0.94\n"
        "  Rank=1 Node=h100-0 Score=0.94\n"
        " Best performing 2/6 ranks:\n"
        "  Rank=5 Node=h100-2 Score=1.00\n"
        "  Rank=2 Node=h100-1 Score=1.00"
    )


def test_few_ranks_are_all_shown() -> None:
    assert manager.score_lines({0: 1.0, 1: 0.5, 2: math.nan}, NODES, 2) == (
        "  Rank=2 Node=h100-1 Score=nan\n"
        "  Rank=1 Node=h100-0 Score=0.50\n"
        "  Rank=0 Node=h100-0 Score=1.00"
    )


def test_the_line_for_programs() -> None:
    assert manager.summary_line("gpu_relative_perf", SCORES) == (
        "gpu_relative_perf scores: {'gpu_relative_perf/min': 0.94, "
        "'gpu_relative_perf/median': 0.97, 'gpu_relative_perf/max': 1.0}"
    )
    assert (
        manager.summary_line("x", {}) == "x scores: {'x/min': nan, 'x/median': nan, 'x/max': nan}"
    )
    assert "'x/min': 1.0" in manager.summary_line("x", {0: math.nan, 1: 1.0})


def test_the_warning() -> None:
    slow = {StragglerId(76, "a"), StragglerId(13, "b")}
    assert manager.warning_line("performance dropped", slow) == (
        "STRAGGLER DETECTION WARNING: Some GPUs performance dropped. Affected ranks: [13, 76]"
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"calc_relative_gpu_perf": False, "calc_individual_gpu_perf": False},
            "calc_individual_gpu_perf",
        ),
        ({"report_time_interval": 0}, "report_time_interval is 0"),
        ({"report_time_interval": math.inf}, "report_time_interval is inf"),
        ({"report_time_interval": "300"}, "report_time_interval is '300'"),
        ({"gpu_relative_perf_threshold": 1.1}, "gpu_relative_perf_threshold is 1.1"),
        ({"gpu_relative_perf_threshold": math.nan}, "gpu_relative_perf_threshold is nan"),
        ({"gpu_individual_perf_threshold": -1}, "gpu_individual_perf_threshold is -1"),
        ({"gpu_individual_perf_threshold": None}, "gpu_individual_perf_threshold is None"),
        ({"calc_relative_gpu_perf": "off"}, "calc_relative_gpu_perf is 'off'"),
        ({"calc_individual_gpu_perf": None}, "calc_individual_gpu_perf is None"),
        ({"stop_if_detected": "false"}, "stop_if_detected is 'false'"),
        ({"enable_logging": []}, "enable_logging is ..: give True or False"),
        ({"num_gpu_perf_scores_to_print": "5"}, "num_gpu_perf_scores_to_print is '5'"),
        ({"num_gpu_perf_scores_to_print": 2.5}, "num_gpu_perf_scores_to_print is 2.5"),
        ({"num_gpu_perf_scores_to_print": -3}, "num_gpu_perf_scores_to_print is -3"),
        ({"num_gpu_perf_scores_to_print": True}, "num_gpu_perf_scores_to_print is True"),
        ({"profiling_interval": 0}, "profiling_interval is 0"),
        ({"profiling_interval": True}, "profiling_interval is True"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        config(**options).finalize()
    config(**{**options, "enabled": False}).finalize()
    one = NVRxStragglerDetectionManager(config(**options))
    with pytest.raises(ValueError, match=says):  # not at the first report, on rank 0 alone
        one.initialize()
    assert not one.initialized
    assert not Detector.initialized


@pytest.mark.parametrize("enabled", ["false", None, 2])
def test_whether_it_is_enabled_is_no_guess(enabled: Any) -> None:
    with pytest.raises(ValueError, match=r"enabled is .*: give True or False"):
        NVRxStragglerDetectionConfig(enabled=enabled).finalize()


def test_a_logger_has_a_name() -> None:
    with pytest.raises(ValueError, match="logger_name is 5"):
        config(logger_name=5).finalize()


def test_defaults() -> None:
    NVRxStragglerDetectionConfig(enabled=True).finalize()
    one = NVRxStragglerDetectionManager(NVRxStragglerDetectionConfig())
    assert one.scores_to_compute == ["relative_perf_scores", "individual_perf_scores"]
    assert one.logger.name == "megatron.bridge.NVRxStragglerDetection"
    assert one.config.report_time_interval == 300.0


def test_disabled_it_does_nothing() -> None:
    one = NVRxStragglerDetectionManager(NVRxStragglerDetectionConfig())
    one.initialize()
    assert one.wrap_train_step_function(len) is len
    assert not one.check_stragglers(0)
    assert not Detector.initialized
    one.shutdown()


def test_it_is_initialized_once(caplog: pytest.LogCaptureFixture) -> None:
    one = NVRxStragglerDetectionManager(config())
    one.initialize()
    assert "NVRx straggler detection enabled (report_interval=300.0s)" in caplog.messages
    with pytest.raises(
        RuntimeError, match=r"^NVRxStragglerDetectionManager is already initialized\.$"
    ):
        one.initialize()
    one.shutdown()
    assert not one.initialized
    assert not Detector.initialized
    one.initialize()


def test_the_step_is_timed(caplog: pytest.LogCaptureFixture) -> None:
    one = NVRxStragglerDetectionManager(config(num_gpu_perf_scores_to_print=1))
    one.initialize()
    step = one.wrap_train_step_function(lambda a, b: a + b)
    assert one.wrap_train_step_function(len) is step
    assert "Train step function already wrapped. Skipping." in caplog.messages
    assert step(1, b=2) == 3
    report = Detector.generate_report()
    assert report is not None
    assert report.gpu_relative_perf_scores == {0: 1.0}, "a step was measured"


def test_a_step_that_cannot_be_wrapped(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise TypeError("no")

    monkeypatch.setattr(Detector, "wrap_callables", fails)
    one = NVRxStragglerDetectionManager(config())
    one.initialize()
    assert one.wrap_train_step_function(len) is len
    assert (
        "Failed to wrap train step function with NVRx: no. Continuing without wrapping."
        in caplog.messages
    )


def report_of(relative: dict[int, float], individual: dict[int, float]) -> Report:
    return Report(relative, {}, individual, {}, NODES, {}, {}, 1.0, True, 0)


def checked(one: Any, monkeypatch: pytest.MonkeyPatch, report: Report | None) -> bool:
    monkeypatch.setattr(Detector, "generate_report_if_interval_elapsed", lambda: report)
    monkeypatch.setattr(Detector, "is_interval_elapsed", lambda: report is not None)
    stopped: bool = one.check_stragglers(0)
    return stopped


def test_a_report_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = NVRxStragglerDetectionManager(config(num_gpu_perf_scores_to_print=2))
    one.initialize()
    caplog.clear()
    assert not checked(one, monkeypatch, report_of({0: 1.0, 1: 0.69}, {0: 0.7, 1: 1.0}))
    warning, *others = caplog.messages[:-1]
    assert warning == manager.warning_line(
        "have worse relative performance", {StragglerId(1, "h100-0")}
    )
    assert "\n".join(others) == (
        "GPU relative performance:\n"
        "  Rank=1 Node=h100-0 Score=0.69\n"
        "  Rank=0 Node=h100-0 Score=1.00\n"
        "gpu_relative_perf scores: {'gpu_relative_perf/min': 0.69, "
        "'gpu_relative_perf/median': 0.69, 'gpu_relative_perf/max': 1.0}\n"
        "GPU individual performance:\n"
        "  Rank=0 Node=h100-0 Score=0.70\n"
        "  Rank=1 Node=h100-0 Score=1.00\n"
        "gpu_individual_perf scores: {'gpu_individual_perf/min': 0.7, "
        "'gpu_individual_perf/median': 0.7, 'gpu_individual_perf/max': 1.0}"
    )
    assert [record.levelno for record in caplog.records] == [
        logging.WARNING,
        *[logging.INFO] * 4,
        logging.DEBUG,
    ]
    assert caplog.messages[-1].startswith("Straggler report processing time: 0.0")
    assert caplog.messages[-1].endswith(" sec.")
    caplog.clear()
    assert not checked(one, monkeypatch, None)
    assert not caplog.messages


def test_only_warnings_where_nothing_is_to_be_printed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = NVRxStragglerDetectionManager(
        config(
            num_gpu_perf_scores_to_print=0,
            enable_logging=False,
            stop_if_detected=True,
            calc_relative_gpu_perf=False,
        )
    )
    one.initialize()
    caplog.clear()
    assert not checked(one, monkeypatch, report_of({}, {0: 1.0}))
    assert checked(one, monkeypatch, report_of({}, {0: 0.5}))
    assert [line for line in caplog.messages if "processing" not in line] == [
        "STRAGGLER DETECTION WARNING: Some GPUs performance dropped. Affected ranks: [0]",
        "Detected stragglers. Training should be stopped.",
    ]


def test_helpers_of_a_loop(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not manager.check_nvrx_straggler_detection(None)
    manager.safe_shutdown_nvrx_straggler_manager(None)
    one = NVRxStragglerDetectionManager(config())
    one.initialize()
    assert not manager.check_nvrx_straggler_detection(one)

    def fails() -> None:
        raise RuntimeError("no end")

    monkeypatch.setattr(one, "shutdown", fails)
    manager.safe_shutdown_nvrx_straggler_manager(one)
    assert "Error shutting down NVRx straggler manager: no end" in caplog.messages
