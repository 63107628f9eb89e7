"""Callbacks of NVRx with a real trainer in this process."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("lightning")

from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from nvidia_resiliency_ext.ptl_resiliency import (
    FaultToleranceCallback,
    FaultToleranceSectionsCallback,
    StragglerDetectionCallback,
)
from tests.integrations.lightning.training import EPOCHS, Model, parameters_of, trainer_of
from undaunted.attribution.straggler import Detector, StragglerId
from undaunted.checkpointing.local.ckpt_managers.local_manager import LocalCheckpointManager
from undaunted.fault_tolerance.data import WorkloadAction, WorkloadControlRequest
from undaunted.fault_tolerance.rank_monitor_client import RankMonitorClient
from undaunted.integrations.lightning import (
    LOCAL_CKPT_OPTS_KEY,
    HierarchicalCheckpointIO,
    LocalCheckpointCallback,
    UndauntedCallback,
    last_checkpoint,
)
from undaunted.progress import writer as writer_module
from undaunted.progress.area import PageArea
from undaunted.progress.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]
FLAG = "FAULT_TOL_FINISHED_FLAG_FILE"
SECTIONS = {"setup": 600.0, "step": 60.0, "checkpointing": 300.0}


@pytest.fixture
def area(monkeypatch: pytest.MonkeyPatch) -> Iterator[PageArea]:
    """The page of a rank under a launcher that only looks."""
    with PageArea.create(1) as area:
        area.set_limits(Limits(sections=SECTIONS, out_of_section_s=900.0))
        monkeypatch.setenv("UNDAUNTED_PAGE", area.env_value(0))
        # What it applies is not what is tested here.
        monkeypatch.setattr(RankMonitorClient, "_apply", lambda *_: True)
        yield area
        if isinstance(writer_module.current, writer_module.PageWriter):
            writer_module.current.detach()
        writer_module.current = writer_module._NotYet()


class At(Callback):
    """Does something at the end of a step."""

    def __init__(self, step: int, action: Callable[[Any], object]) -> None:
        self.step, self.action = step, action

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            self.action(trainer)


def fit(folder: Path, *callbacks: Any, **options: Any) -> Model:
    model = Model()
    saving = ModelCheckpoint(dirpath=folder / "checkpoints")
    trainer = trainer_of([*callbacks, saving], default_root_dir=folder, **options)
    trainer.fit(model, ckpt_path=last_checkpoint(folder / "checkpoints"))
    left = {"training_step", "validation_step", "save_checkpoint", "remove_checkpoint"}
    assert left.isdisjoint(vars(trainer.strategy))
    assert left.isdisjoint(vars(trainer))
    return model


# --- heartbeats and sections ----------------------------------------------------------------------


WATCHING = [FaultToleranceCallback, FaultToleranceSectionsCallback]


@pytest.mark.parametrize("kind", WATCHING)
@pytest.mark.usefixtures("area")
def test_training_is_as_without(tmp_path: Path, kind: Any) -> None:
    plain = parameters_of(fit(tmp_path / "plain"))
    watched = kind(autoresume=False, calculate_timeouts=False)
    assert parameters_of(fit(tmp_path / "watched", watched)) == plain
    assert not watched.is_initialized


@pytest.mark.parametrize("kind", WATCHING)
@pytest.mark.usefixtures("area")
def test_autoresume_needs_the_name_of_the_flag(
    tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FLAG, raising=False)
    with pytest.raises(RuntimeError, match=FLAG):
        fit(tmp_path, kind(autoresume=True, calculate_timeouts=True))


def test_without_limits_and_without_a_launcher_they_have_to_be_calculated(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="calculate_timeouts"):
        fit(tmp_path, FaultToleranceCallback(autoresume=False, calculate_timeouts=False))
    fit(tmp_path, FaultToleranceCallback(autoresume=False, calculate_timeouts=True))


def test_the_launcher_has_to_have_limits_for_the_three_sections(tmp_path: Path) -> None:
    watched = FaultToleranceSectionsCallback(autoresume=False, calculate_timeouts=True)
    with pytest.raises(ValueError, match="checkpointing"):
        fit(tmp_path, watched)
    assert not watched.is_initialized


@pytest.mark.parametrize("kind", WATCHING)
@pytest.mark.usefixtures("area")
def test_the_flag_is_made_when_training_is_complete(
    tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    monkeypatch.setattr(
        "nvidia_resiliency_ext.ptl_resiliency._watched.tell_launcher",
        lambda reason, *_: ended.append(reason.value),
    )
    flag = tmp_path / "finished"
    monkeypatch.setenv(FLAG, str(flag))

    def stop(trainer: Any) -> None:
        trainer.should_stop = True

    def fail(_: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fit(tmp_path, kind(True, True), At(12, fail))
    assert (flag.exists(), ended) == (False, [])
    fit(tmp_path, kind(True, True), At(14, stop))
    assert (flag.exists(), ended) == (False, ["requested"]), "not finished, though it ends with 0"
    fit(tmp_path, kind(True, True))
    assert (flag.exists(), ended) == (True, ["requested"])
    flag.unlink()
    fit(tmp_path, kind(True, True))  # has nothing left to do
    assert flag.exists()


@pytest.mark.usefixtures("area")
def test_limits_of_heartbeats_are_calculated_once_and_kept(tmp_path: Path) -> None:
    fit(tmp_path, FaultToleranceCallback(False, True), max_epochs=1)
    assert not (tmp_path / "ft_state/_ft_state.json").exists(), "nothing was loaded"
    calls: list[int] = []

    class Counts(FaultToleranceCallback):
        def _keep(self, client: Any) -> None:
            calls.append(self._iterations)
            super()._keep(client)

    fit(tmp_path, Counts(False, True))
    assert len(calls) == 1
    state = json.loads((tmp_path / "ft_state/_ft_state.json").read_text())
    limits = state["current_timeouts"]["heartbeat"]
    assert limits["were_calculated"]
    seen: list[Any] = []

    class Looks(FaultToleranceCallback):
        def on_train_end(self, *args: Any) -> None:
            seen.append(self.fault_tol_client.hb_timeouts)
            super().on_train_end(*args)

    fit(tmp_path, Looks(False, False), max_epochs=EPOCHS + 1)
    assert seen[0].initial == limits["initial"]


@pytest.mark.usefixtures("area")
def test_limits_of_sections_are_calculated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    folder = tmp_path / "kept"
    fit(tmp_path, FaultToleranceSectionsCallback(False, True, exp_dir=folder), max_epochs=2)
    state = json.loads((folder / "_ft_state_.json").read_text())
    section = state["current_timeouts"]["section"]
    assert section["calculated_sections"] == ["checkpointing"], "16 steps, and nothing was loaded"
    assert not section["is_out_of_section_calculated"]
    fit(tmp_path, FaultToleranceSectionsCallback(False, True, exp_dir=folder), max_epochs=5)
    state = json.loads((folder / "_ft_state_.json").read_text())
    section = state["current_timeouts"]["section"]
    assert section["calculated_sections"] == ["checkpointing", "setup", "step"]
    assert section["is_out_of_section_calculated"]
    lines = [one.message for one in caplog.records if "FaultTolerance" in one.name]
    assert lines
    assert all(line.startswith("[FaultToleranceCallback@rank0] ") for line in lines)


@pytest.mark.usefixtures("area")
def test_sections_are_open_while_what_they_stand_for_is_done(tmp_path: Path) -> None:
    seen: dict[str, set[str]] = {}
    watched = FaultToleranceSectionsCallback(False, True)

    def look(where: str) -> None:
        client = watched.fault_tol_client
        assert client is not None
        seen.setdefault(where, set()).add(" ".join(client.timeouts_calc.open_sections))  # type: ignore[union-attr]

    class Looks(Model):
        def training_step(self, batch: Any, number: int) -> Any:
            look("training step")
            return super().training_step(batch, number)

        def validation_step(self, batch: Any, number: int) -> None:
            look("validation step")
            super().validation_step(batch, number)

        def on_save_checkpoint(self, _: Any) -> None:
            look("save")

        def configure_optimizers(self) -> Any:
            look("setup")
            return super().configure_optimizers()

        def on_before_zero_grad(self, _: Any) -> None:
            look("between")

    trainer = trainer_of(
        [watched, ModelCheckpoint(dirpath=tmp_path)], default_root_dir=tmp_path, max_epochs=2
    )
    trainer.fit(Looks())
    assert seen == {
        "setup": {"setup"},
        "training step": {"step"},
        "validation step": {"step"},
        "save": {"checkpointing"},
        "between": {""},
    }


@pytest.mark.parametrize("kind", WATCHING)
@pytest.mark.parametrize("hook", ["setup", "on_train_start", "on_train_batch_end", "teardown"])
def test_exceptions_leave_nothing_behind(
    tmp_path: Path, area: PageArea, kind: Any, hook: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    failing = Callback()
    setattr(failing, hook, fail)
    watched = kind(False, True)
    trainer = trainer_of([watched, failing], default_root_dir=tmp_path)
    with pytest.raises(ZeroDivisionError):
        trainer.fit(Model())
    assert not watched.is_initialized
    assert "training_step" not in vars(trainer.strategy)
    assert "save_checkpoint" not in vars(trainer)
    trainer_of([watched], default_root_dir=tmp_path, max_epochs=1).fit(Model())


@pytest.mark.usefixtures("area")
def test_the_policy_for_exceptions_is_asked_and_a_shutdown_makes_the_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = tmp_path / "finished"
    monkeypatch.setenv(FLAG, str(flag))
    sent: list[WorkloadControlRequest] = []
    monkeypatch.setattr(
        RankMonitorClient, "send_workload_control_request", lambda _, one: sent.append(one)
    )

    def policy(error: Exception) -> WorkloadControlRequest:
        fatal = isinstance(error, ZeroDivisionError)
        action = WorkloadAction.ShutdownWorkload if fatal else WorkloadAction.ExcludeThisNode
        return WorkloadControlRequest(action, "a test")

    for error in (ValueError(), ZeroDivisionError()):
        assert not flag.exists()

        def fail(_: Any, error: Exception = error) -> None:
            raise error

        watched = FaultToleranceSectionsCallback(False, True, exc_handling_policy=policy)
        with pytest.raises(type(error)):
            fit(tmp_path, watched, At(3, fail))
    assert [one.action.name for one in sent] == ["ExcludeThisNode", "ShutdownWorkload"]
    assert flag.exists()


@pytest.mark.parametrize("fault", [7, ["rank_hung"], {"fault_type": "odd", "base_delay": 1}])
def test_a_fault_that_cannot_be_read_is_refused(fault: Any) -> None:
    with pytest.raises(ValueError, match=r"fault|odd"):
        FaultToleranceCallback(False, True, simulated_fault_params=fault)


# --- slow ranks -----------------------------------------------------------------------------------


def straggler_callback(**options: Any) -> StragglerDetectionCallback:
    settings = {
        "report_time_interval": 0.001,
        "calc_relative_gpu_perf": True,
        "calc_individual_gpu_perf": True,
        "num_gpu_perf_scores_to_print": 5,
        "gpu_relative_perf_threshold": 0.7,
        "gpu_individual_perf_threshold": 0.0,
        "stop_if_detected": False,
        "enable_ptl_logging": True,
    }
    return StragglerDetectionCallback(**{**settings, **options})


def test_reports_of_real_steps(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    logged: dict[str, float] = {}

    class Looks(Callback):
        def on_train_end(self, trainer: Any, _: Any) -> None:
            logged.update(trainer.logged_metrics)

    fit(tmp_path, straggler_callback(), Looks())
    assert not Detector.initialized
    for kind in ("relative", "individual"):
        for what in ("min", "median", "max"):
            assert 0 < float(logged[f"gpu_{kind}_perf/{what}"]) <= 1
    lines = [
        one.message for one in caplog.records if one.name.endswith("StragglerDetectionCallback")
    ]
    relative = next(line for line in lines if "GPU relative performance" in line)
    assert relative.startswith("\nGPU relative performance:\n  Rank=0 Node=")
    assert relative.endswith(" Score=1.00")
    assert any(line.startswith("Straggler report processing time: ") for line in lines)


@pytest.mark.parametrize("save_last", [True, False])
def test_a_slow_rank_ends_training_with_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save_last: bool
) -> None:
    slow = {"straggler_gpus_relative": {StragglerId(0, "node")}, "straggler_gpus_individual": set()}
    monkeypatch.setattr(
        "undaunted.attribution.straggler.report.Report.identify_stragglers", lambda *_, **__: slow
    )
    saving = ModelCheckpoint(dirpath=tmp_path, save_last=save_last)
    callback = straggler_callback(stop_if_detected=True)
    trainer = trainer_of([callback, saving], default_root_dir=tmp_path)
    with pytest.raises(SystemExit) as stop:
        trainer.fit(Model())
    assert stop.value.code == 1
    assert trainer.should_stop
    newest = last_checkpoint(tmp_path)
    assert newest is not None
    name = "last.ckpt" if save_last else f"stopped-step={trainer.global_step}.ckpt"
    assert newest == str(tmp_path / name)
    assert not Detector.initialized


def test_a_value_that_cannot_be_meant_is_refused() -> None:
    with pytest.raises(ValueError, match="report_time_interval"):
        straggler_callback(report_time_interval=0)
    with pytest.raises(ValueError, match="both off"):
        straggler_callback(calc_relative_gpu_perf=False, calc_individual_gpu_perf=False)


def test_callbacks_around_the_same_method_leave_in_any_order(
    tmp_path: Path, area: PageArea
) -> None:
    one, other = FaultToleranceSectionsCallback(False, True), straggler_callback()
    for callbacks in ([one, other], [other, one], [one, UndauntedCallback(), other]):
        fit(tmp_path / str(len(callbacks)), *callbacks, max_epochs=1)


# --- local checkpoints ----------------------------------------------------------------------------


class Local:
    """A trainer with local checkpoints, which counts what is loaded from where."""

    def __init__(self, folder: Path, *callbacks: Any, async_save: bool = False) -> None:
        self.loaded: list[int] = []
        self.manager = LocalCheckpointManager(folder / "local")
        self.io = HierarchicalCheckpointIO(
            TorchCheckpointIO(), self.manager, lambda _: self.step_of_path, async_save
        )
        original = self.io.from_tensor_aware_state_dict

        def count(state: Any, **options: Any) -> Any:
            self.loaded.append(original(state)["global_step"])
            return original(state, **options)

        self.io.from_tensor_aware_state_dict = count
        self.step_of_path = 0
        self.model = Model()
        self.saving = ModelCheckpoint(dirpath=folder)
        self.trainer = trainer_of(
            [*callbacks, self.saving], plugins=[self.io], default_root_dir=folder
        )


def fail(_: Any) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("async_save", [False, True])
def test_the_newer_checkpoint_is_loaded(tmp_path: Path, async_save: bool) -> None:
    plain = parameters_of(fit(tmp_path / "plain"))
    every = LocalCheckpointCallback(every_n_train_steps=3)
    first = Local(tmp_path, every, At(16, fail), async_save=async_save)
    with pytest.raises(ZeroDivisionError):
        first.trainer.fit(first.model)
    first.manager.close()
    path = last_checkpoint(tmp_path)
    assert path is not None
    assert path.endswith("step=8.ckpt")
    second = Local(tmp_path, LocalCheckpointCallback(every_n_train_steps=3))
    second.step_of_path = 8
    second.trainer.fit(second.model, ckpt_path=path)
    # What was being written when training failed need not be there: after 8, one is, in any case.
    assert second.loaded in ([[9], [12], [15]] if async_save else [[15]])
    assert parameters_of(second.model) == plain
    # What is told to be tested is tested.
    second.trainer.validate(second.model, ckpt_path=path)
    assert len(second.loaded) == 1
    second.manager.close()
    third = Local(tmp_path, LocalCheckpointCallback(every_n_train_steps=3))
    third.step_of_path = 32
    third.trainer.fit(third.model, ckpt_path=last_checkpoint(tmp_path))
    assert third.loaded == []
    third.manager.close()


def test_local_checkpoints_are_saved_after_a_while(tmp_path: Path) -> None:
    saved: list[int] = []

    class Counts(HierarchicalCheckpointIO):
        def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> Any:
            if storage_options:
                saved.append(storage_options[LOCAL_CKPT_OPTS_KEY]["iteration"])
                assert storage_options[LOCAL_CKPT_OPTS_KEY]["ckpt_type"] == "local"
            return super().save_checkpoint(checkpoint, path, storage_options)

    manager = LocalCheckpointManager(tmp_path / "local")
    make = Counts.get_partial_wrapper_constructor(manager, lambda _: 0)
    for interval in (timedelta(microseconds=1), timedelta(days=1)):
        callback = LocalCheckpointCallback(train_time_interval=interval)
        trainer = trainer_of([callback], plugins=[make(TorchCheckpointIO())], max_epochs=1)
        trainer.fit(Model())
        assert saved == [*range(1, 9)]
    assert not [*tmp_path.glob("*.ckpt")]
    manager.close()


@pytest.mark.parametrize(
    "when",
    [
        {},
        {"every_n_train_steps": 1, "train_time_interval": timedelta(1)},
        {"every_n_train_steps": 0},
    ],
)
def test_when_to_save_has_to_be_said_once(when: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="every_n_train_steps"):
        LocalCheckpointCallback(**when)


def test_a_trainer_that_cannot_save_locally_is_refused_as_training_begins() -> None:
    callback = LocalCheckpointCallback(every_n_train_steps=1)
    trainer = SimpleNamespace(save_checkpoint=lambda path: None)
    with pytest.raises(RuntimeError, match="storage_options"):
        callback.setup(trainer, None, "fit")


def test_a_local_checkpoint_has_no_path(tmp_path: Path) -> None:
    manager = LocalCheckpointManager(tmp_path)
    io = HierarchicalCheckpointIO(TorchCheckpointIO(), manager, lambda _: 0)
    with pytest.raises(ValueError, match="None"):
        io.save_checkpoint({}, "path", {LOCAL_CKPT_OPTS_KEY: {"iteration": 1}})


def test_every_hook_of_model_checkpoint_is_the_callbacks_own() -> None:
    hooks = {name for name in vars(ModelCheckpoint) if name.startswith("on_") or name == "setup"}
    assert hooks <= set(vars(LocalCheckpointCallback))
