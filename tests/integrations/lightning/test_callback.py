"""`UndauntedCallback` with a real trainer in this process."""

from __future__ import annotations

import os
import signal
import uuid
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("lightning")

import torch
from fsspec.core import url_to_fs
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.io import AsyncCheckpointIO

from tests.integrations.lightning.training import BATCHES, EPOCHS, Model, parameters_of, trainer_of
from undaunted.integrations.lightning import UndauntedCallback, last_checkpoint
from undaunted.training import Session, StopReason

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]
STEPS = EPOCHS * BATCHES


class At(Callback):
    """Does something at the end of a step."""

    def __init__(self, step: int, action: Callable[[Any], object]) -> None:
        self.step, self.action = step, action

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            self.action(trainer)


def preempt(_: Any = None) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def fit(folder: Path | str, *callbacks: Any, **options: Any) -> list[float]:
    model = Model()
    saving = ModelCheckpoint(dirpath=folder)
    trainer = trainer_of([UndauntedCallback(), *callbacks, saving], **options)
    trainer.fit(model, ckpt_path=last_checkpoint(folder))
    return parameters_of(model)


def handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return fit(tmp_path_factory.mktemp("undisturbed"))


def test_a_training_is_as_without(tmp_path: Path, undisturbed: list[float]) -> None:
    model = Model()
    trainer_of([], default_root_dir=tmp_path).fit(model)
    assert parameters_of(model) == undisturbed


def test_a_trainer_of_another_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector

    monkeypatch.delattr(_SignalConnector, "register_signal_handlers")
    before = handlers()
    with pytest.raises(RuntimeError, match=r"_signal_connector\.register_signal_handlers"):
        fit(tmp_path)
    assert handlers() == before


@pytest.mark.parametrize("step", [1, 3, BATCHES - 1, BATCHES, BATCHES + 1, STEPS - 1, STEPS])
def test_a_stop_saves_and_the_next_start_goes_on(
    tmp_path: Path, undisturbed: list[float], step: int
) -> None:
    with pytest.raises(SystemExit) as stop:
        fit(tmp_path, At(step, preempt))
    assert stop.value.code == 75
    assert [path.name for path in tmp_path.glob("stopped*")] == [f"stopped-step={step}.ckpt"]
    assert fit(tmp_path) == undisturbed


@pytest.mark.parametrize("step", [1, BATCHES + 1, 3 * BATCHES - 1])
def test_after_an_error_training_goes_on_from_the_end_of_an_epoch(
    tmp_path: Path, undisturbed: list[float], step: int
) -> None:
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path, At(step, lambda _: 1 // 0))
    assert fit(tmp_path) == undisturbed


def test_checkpoints_of_stops_before_are_deleted(tmp_path: Path) -> None:
    for step in (3, 6):
        with pytest.raises(SystemExit):
            fit(tmp_path, At(step, preempt))
    assert [path.name for path in tmp_path.iterdir()] == ["stopped-step=6.ckpt"]


def test_a_stop_waits_for_a_checkpoint_in_the_background(
    tmp_path: Path, undisturbed: list[float]
) -> None:
    with pytest.raises(SystemExit):
        fit(tmp_path, At(5, preempt), plugins=[AsyncCheckpointIO()])
    assert last_checkpoint(tmp_path) == str(tmp_path / "stopped-step=5.ckpt")
    assert fit(tmp_path) == undisturbed


def test_gradients_that_are_accumulated_are_not_lost_by_a_stop(tmp_path: Path) -> None:
    expected = fit(tmp_path / "undisturbed", accumulate_grad_batches=3)
    seen: list[int] = []

    class InTheMiddle(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            seen.append(trainer.global_step)
            if len(seen) == 4:
                preempt()

    with pytest.raises(SystemExit):
        fit(tmp_path, InTheMiddle(), accumulate_grad_batches=3)
    assert seen == [0, 0, 1, 1, 1, 2]
    assert fit(tmp_path, accumulate_grad_batches=3) == expected


def test_what_callbacks_do_at_the_end_of_the_step_is_in_the_checkpoint(tmp_path: Path) -> None:
    class Counts(Callback):
        count = 0

        def on_train_batch_end(self, *_: Any) -> None:
            self.count += 1

        def state_dict(self) -> dict[str, int]:
            return {"count": self.count}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.count = state["count"]

    with pytest.raises(SystemExit):
        fit(tmp_path, At(5, preempt), Counts())
    counts = Counts()
    fit(tmp_path, counts)
    assert counts.count == STEPS


def test_a_program_may_ask_for_a_stop_itself(tmp_path: Path) -> None:
    undaunted = UndauntedCallback(tmp_path, stop_signals=())
    ask = At(4, lambda _: undaunted.session.request_stop(StopReason.REQUESTED))
    trainer = trainer_of([undaunted, ask], default_root_dir=tmp_path / "other")
    with pytest.raises(SystemExit):
        trainer.fit(Model())
    assert last_checkpoint(tmp_path) == str(tmp_path / "stopped-step=4.ckpt")


@pytest.mark.parametrize("given", ["in the callback", "in ModelCheckpoint"])
def test_a_stop_saves_at_a_url(undisturbed: list[float], given: str) -> None:
    folder = f"memory://{uuid.uuid4()}/checkpoints"
    for step in (3, 5):
        saving = [UndauntedCallback(folder)]
        if given == "in ModelCheckpoint":
            saving = [UndauntedCallback(), ModelCheckpoint(dirpath=folder)]
        trainer = trainer_of([*saving, At(step, preempt)])
        with pytest.raises(SystemExit):
            trainer.fit(Model(), ckpt_path=last_checkpoint(folder))
        assert last_checkpoint(folder) == f"{folder}/stopped-step={step}.ckpt"
    files, root = url_to_fs(folder)
    assert len(files.ls(root)) == 1
    assert fit(folder) == undisturbed
    files.rm(root, recursive=True)


def test_what_is_no_folder_is_refused_before_training() -> None:
    with pytest.raises(ValueError, match="folder is 123"):
        UndauntedCallback(folder=123)


@pytest.mark.parametrize("same", [True, False])
def test_two_callbacks_are_refused(tmp_path: Path, same: bool) -> None:
    first = UndauntedCallback(tmp_path)
    second = first if same else UndauntedCallback(tmp_path)
    with pytest.raises(ValueError, match="two UndauntedCallback"):
        trainer_of([first, second], default_root_dir=tmp_path).fit(Model())
    with Session():  # none of them has left one open
        pass


@pytest.mark.parametrize("logs", [True, False])
@pytest.mark.parametrize("named", [True, False])
def test_a_folder_that_is_another_one_at_each_start_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, logs: bool, named: bool
) -> None:
    saving = ModelCheckpoint(dirpath=tmp_path / "checkpoints" if named else None)
    logger = CSVLogger(tmp_path) if logs else False
    trainer_of(
        [UndauntedCallback(), saving], default_root_dir=tmp_path, max_epochs=1, logger=logger
    ).fit(Model())
    assert ("has no dirpath" in caplog.text) == (logs and not named)
    if not named and not logs:
        assert last_checkpoint(tmp_path / "checkpoints") is not None


class FailsAt(Callback):
    """Raises in a hook."""

    def __init__(self, hook: str, error: BaseException) -> None:
        def fail(*_: Any, **__: Any) -> None:
            raise error

        setattr(self, hook, fail)


HOOKS = ["setup", "on_fit_start", "on_sanity_check_start", "on_validation_start", "on_train_start"]
HOOKS += ["on_train_batch_start", "on_train_batch_end", "on_train_end", "on_fit_end", "teardown"]


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("error", [ValueError("a test"), KeyboardInterrupt()], ids=["error", "^C"])
def test_exceptions_leave_nothing_behind(tmp_path: Path, hook: str, error: BaseException) -> None:
    before = handlers()
    undaunted = UndauntedCallback(tmp_path)
    trainer = trainer_of([undaunted, FailsAt(hook, error)], default_root_dir=tmp_path)
    with pytest.raises((ValueError, SystemExit)):
        trainer.fit(Model())
    signal.signal(signal.SIGINT, before[signal.SIGINT])  # which Lightning ignores after ^C
    assert handlers() == before
    assert undaunted.session is None
    assert "save_checkpoint" not in vars(trainer)
    assert "register_signal_handlers" not in vars(trainer._signal_connector)
    with Session():  # there is no other one
        pass


def test_one_trainer_after_the_other_and_evaluation_alone(tmp_path: Path) -> None:
    before = handlers()
    undaunted = UndauntedCallback(tmp_path)
    trainer = trainer_of([undaunted], max_epochs=1, default_root_dir=tmp_path)
    trainer.validate(Model())
    trainer.fit(Model())
    trainer.validate(Model())
    trainer_of([undaunted], max_epochs=1, default_root_dir=tmp_path).fit(Model())
    trainer_of([undaunted], max_epochs=0, default_root_dir=tmp_path).fit(Model())
    assert handlers() == before


def test_a_fit_that_did_not_say_that_it_ended_is_left(tmp_path: Path) -> None:
    undaunted = UndauntedCallback(tmp_path)
    failing = FailsAt("on_train_start", ValueError("a test"))
    failing.on_exception = FailsAt("x", RuntimeError("another")).x
    with pytest.raises(RuntimeError):
        trainer_of([failing, undaunted], default_root_dir=tmp_path).fit(Model())
    trainer_of([undaunted], max_epochs=1, default_root_dir=tmp_path).fit(Model())
    assert undaunted.session is None


def test_signals_are_the_sessions_while_it_trains(tmp_path: Path) -> None:
    seen = []
    look = At(1, lambda _: seen.append(signal.getsignal(signal.SIGTERM)))
    fit(tmp_path, look, max_epochs=1)
    assert "undaunted" in seen[0].__module__


class Evaluation(Callback):
    """Averages weights meanwhile, counts what is evaluated, and is told to stop in a batch."""

    def __init__(self, at: tuple[int, int] | None = None) -> None:
        self.at, self.batches, self.whole = at, [], []

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        self.kept = {name: value.clone() for name, value in module.state_dict().items()}
        for value in module.parameters():
            value.data.zero_()

    def on_validation_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        self.batches.append(trainer.global_step)
        if (trainer.global_step, self.batches.count(trainer.global_step)) == self.at:
            preempt()

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        module.load_state_dict(self.kept)
        if not trainer.sanity_checking:
            self.whole.append(trainer.global_step)


class Evaluated(Model):
    def validation_step(self, batch: Any, index: int) -> None:
        self.log("loss", float(index + self.global_step))

    def val_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(torch.ones(18, 16), batch_size=2)


def fit_evaluated(folder: Path, evaluation: Evaluation, *callbacks: Any) -> tuple[Any, ...]:
    model = Evaluated()
    early = EarlyStopping("loss", patience=100)
    saving = ModelCheckpoint(dirpath=folder, monitor="loss", save_top_k=2)
    trainer = trainer_of(
        [evaluation, early, UndauntedCallback(), *callbacks, saving],
        val_check_interval=4,
        num_sanity_val_steps=2,
    )
    trainer.fit(model, ckpt_path=last_checkpoint(folder))
    return parameters_of(model), early.state_dict(), saving.best_model_score


@pytest.mark.parametrize("at", [(4, 1), (4, 9), (BATCHES, 3), (BATCHES + 4, 2), (STEPS, 5)])
def test_a_stop_does_not_wait_for_an_evaluation(tmp_path: Path, at: tuple[int, int]) -> None:
    whole = Evaluation()
    undisturbed = fit_evaluated(tmp_path / "undisturbed", whole)
    first, second = Evaluation(at), Evaluation()
    with pytest.raises(SystemExit) as stop:
        fit_evaluated(tmp_path / "stopped", first)
    assert (stop.value.code, first.batches.count(at[0])) == (75, at[1])
    assert fit_evaluated(tmp_path / "stopped", second) == undisturbed
    assert first.whole + second.whole == whole.whole, "what was left is made up"


class ToldAtTheEnd(Evaluation):
    """Is told to stop when the last batch is over, as in the computation of a metric."""

    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        if (trainer.global_step, 0) == self.at:
            preempt()


def test_what_has_results_does_not_see_those_of_an_evaluation_twice(tmp_path: Path) -> None:
    whole = Evaluation()
    undisturbed = fit_evaluated(tmp_path / "undisturbed", whole)
    first, second = ToldAtTheEnd((8, 0)), Evaluation()
    with pytest.raises(SystemExit):
        fit_evaluated(tmp_path / "stopped", first)
    assert fit_evaluated(tmp_path / "stopped", second) == undisturbed
    assert first.whole + second.whole == whole.whole


def test_nothing_is_saved_at_the_end_of_the_check_before_training(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stop:
        fit_evaluated(tmp_path, ToldAtTheEnd((0, 0)))
    assert stop.value.code == 75
    assert not list(tmp_path.iterdir())


def test_a_stop_does_not_wait_for_the_check_before_training(tmp_path: Path) -> None:
    first = Evaluation((0, 1))
    with pytest.raises(SystemExit) as stop:
        fit_evaluated(tmp_path, first)
    assert (stop.value.code, first.batches) == (75, [0])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("does", ["validate", "test", "predict"])
def test_a_stop_does_not_wait_for_an_evaluation_outside_of_training(
    tmp_path: Path, does: str
) -> None:
    seen: list[int] = []

    class Evaluates(Model):
        def told(self, _: Any, index: int) -> None:
            seen.append(index)
            if index == 2:
                preempt()

        validation_step = test_step = predict_step = told

    undaunted = UndauntedCallback(tmp_path)
    trainer = trainer_of([undaunted], default_root_dir=tmp_path)
    loader = torch.utils.data.DataLoader(torch.ones(18, 16), batch_size=2)
    with pytest.raises(SystemExit) as stop:
        getattr(trainer, does)(Evaluates(), loader)
    assert (stop.value.code, seen) == (75, [0, 1, 2])
    assert undaunted.session is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("does", ["validate", "test", "predict"])
def test_an_evaluation_outside_of_training_is_no_session_without_a_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, does: str
) -> None:
    class Evaluates(Model):
        test_step = predict_step = Model.validation_step

    loader = torch.utils.data.DataLoader(torch.ones(18, 16), batch_size=2)
    getattr(trainer_of([UndauntedCallback(tmp_path)]), does)(Evaluates(), loader)
    assert "has seen no step" not in caplog.text


class Partial(Evaluated):
    """Needs all results of two loaders at its end, and has weights of its own until then."""

    def on_validation_start(self) -> None:
        self.results: list[list[Any]] = [[], []]
        self.kept = [each.detach().clone() for each in self.parameters()]
        for each in self.parameters():
            each.data.zero_()

    def validation_step(self, batch: Any, index: int, dataloader_idx: int = 0) -> None:
        self.results[dataloader_idx].append(batch)

    def on_validation_epoch_end(self) -> None:
        self.log("loss", torch.cat(self.results[0] + self.results[1]).mean())
        assert [len(torch.cat(each)) for each in self.results] == [18, 18]

    def on_validation_end(self) -> None:
        for each, kept in zip(self.parameters(), self.kept, strict=True):
            each.data.copy_(kept)

    def val_dataloader(self) -> Any:
        return [super().val_dataloader()] * 2


@pytest.mark.parametrize("at", [(4, 1), (8, 9), (12, 11)])
def test_a_module_that_needs_all_results_does_not_cost_the_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, at: tuple[int, int]
) -> None:
    def fit_partial(folder: Path, *callbacks: Any) -> list[float]:
        model, saving = Partial(), ModelCheckpoint(dirpath=folder)
        trainer = trainer_of(
            [*callbacks, UndauntedCallback(), saving], val_check_interval=4, num_sanity_val_steps=0
        )
        trainer.fit(model, ckpt_path=last_checkpoint(folder))
        return parameters_of(model)

    undisturbed = fit_partial(tmp_path / "undisturbed")
    evaluation = Evaluation(at)
    evaluation.on_validation_start = evaluation.on_validation_end = lambda *_: None
    with pytest.raises(SystemExit) as stop:
        fit_partial(tmp_path / "stopped", evaluation)
    assert (stop.value.code, evaluation.batches.count(at[0])) == (75, at[1])
    assert "Partial.on_validation_epoch_end raises" in caplog.text
    assert fit_partial(tmp_path / "stopped") == undisturbed
