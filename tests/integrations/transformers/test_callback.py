"""The sections of the callback, with the real trainer in one process."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

transformers = pytest.importorskip("transformers")

import torch  # noqa: E402

from undaunted.integrations.transformers import UndauntedCallback, last_checkpoint  # noqa: E402

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore"),  # of the framework
]


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        found = self.line(x)
        return {"loss": found.square().mean(), "logits": found}


class Noted(UndauntedCallback):
    """Keeps the names of the sections it enters, steps among them."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def on_step_begin(self, *given: Any, **named: Any) -> None:
        super().on_step_begin(*given, **named)
        assert self._open is not None
        self.names.append(self._open.name)

    def _enter(self, section: Any) -> None:
        if section is not None:
            kinds = {"_GeneratorContextManager": "checkpointing"}
            self.names.append(kinds.get(type(section).__name__) or section.name)
        super()._enter(section)

    @property
    def left(self) -> bool:
        return self._session is None and self._open is None


class Fails(transformers.TrainerCallback):
    def on_pre_optimizer_step(self, *given: Any, **named: Any) -> None:
        raise OSError("a step fails")


class Stops(transformers.TrainerCallback):
    def on_pre_optimizer_step(self, *given: Any, **named: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def trainer(folder: Path, *callbacks: Any, several: bool = False, **options: Any) -> Any:
    data = [{"x": torch.ones(4), "labels": torch.ones(1)} for _ in range(8)]
    given = {"max_steps": 2, "save_strategy": "no", **options}
    args = transformers.TrainingArguments(
        str(folder), report_to="none", disable_tqdm=True, use_cpu=True, **given
    )
    held_out = {"a": data, "b": data} if several else data
    return transformers.Trainer(
        Model(), args, train_dataset=data, eval_dataset=held_out, callbacks=list(callbacks)
    )


def test_steps_evaluations_and_saves(tmp_path: Path) -> None:
    callback = Noted()
    trainer(
        tmp_path, callback, eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=2
    ).train()
    assert callback.names == ["step", "evaluation", "step", "evaluation", "checkpointing"]
    assert callback.left


def test_a_step_is_one_of_the_optimizer(tmp_path: Path) -> None:
    callback = Noted()
    trainer(
        tmp_path, callback, gradient_accumulation_steps=3, per_device_train_batch_size=1
    ).train()
    assert callback.names == ["step", "step"]


def test_the_best_is_saved(tmp_path: Path) -> None:
    callback = Noted()
    trainer(
        *(tmp_path, callback),
        eval_strategy="epoch",
        save_strategy="best",
        metric_for_best_model="loss",
        num_train_epochs=2,
        max_steps=-1,
    ).train()
    assert callback.names == ["step", "evaluation", "step", "evaluation"]
    assert callback.left
    assert last_checkpoint(tmp_path) is not None


def test_each_of_several_sets_of_data_is_evaluated(tmp_path: Path) -> None:
    callback = Noted()
    options = {"eval_strategy": "steps", "eval_steps": 2}
    trainer(tmp_path, callback, several=True, **options).train()
    assert callback.names == ["step", "step", "evaluation", "evaluation"]
    assert callback.left


def test_nothing_is_open_without_a_step(tmp_path: Path) -> None:
    callback = Noted()
    options = {"save_strategy": "steps", "save_steps": 2}
    trainer(tmp_path, callback, **options).train()
    before = list(callback.names)
    again = trainer(tmp_path, callback, **options)
    again.train(resume_from_checkpoint=last_checkpoint(tmp_path))
    again.evaluate()
    again.predict(again.eval_dataset)
    assert callback.names == before
    assert callback.left


def test_a_session_that_an_exception_left_open_is_left_by_the_next(tmp_path: Path) -> None:
    failed, callback = Noted(), Noted()
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(OSError, match="a step fails"):
        trainer(tmp_path, Fails(), failed).train()
    trainer(tmp_path, callback).train()
    assert failed.left
    assert callback.names == ["step", "step"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_stop_saves_and_ends_the_script(tmp_path: Path) -> None:
    callback = Noted()
    stopped = trainer(
        *(tmp_path, Stops(), callback),
        max_steps=5,
        eval_strategy="steps",
        eval_steps=1,
        load_best_model_at_end=True,
        save_strategy="steps",
        save_steps=5,
        save_total_limit=1,
    )
    with pytest.raises(SystemExit) as end:
        stopped.train()
    assert end.value.code == 75
    assert callback.names == ["step", "checkpointing"]
    assert Path(last_checkpoint(tmp_path) or "").name == "checkpoint-1"


def test_a_subclass_with_another_signature_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers.Trainer, "_evaluate", lambda self, trial: {})
    with pytest.raises(RuntimeError, match=r"Trainer\._evaluate .*ignore_keys_for_eval"):
        trainer(tmp_path, UndauntedCallback()).train()


def test_the_trainers_own_checkpoint_at_a_signal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="enable_jit_checkpoint"):
        trainer(tmp_path, UndauntedCallback(), enable_jit_checkpoint=True).train()


@pytest.mark.parametrize("same", [True, False])
def test_two_callbacks_are_refused(tmp_path: Path, same: bool) -> None:
    first = Noted()
    second = first if same else UndauntedCallback()
    twice = trainer(tmp_path, first, second)
    with pytest.raises(ValueError, match="two UndauntedCallback"):
        twice.train()
    assert first.left
    again = Noted()
    trainer(tmp_path, again).train()  # what went wrong before does not matter
    assert again.names == ["step", "step"]


def test_one_with_the_model_only_is_not_gone_on_from(tmp_path: Path) -> None:
    trainer(
        *(tmp_path, UndauntedCallback()), save_strategy="steps", save_steps=1, save_only_model=True
    ).train()
    with pytest.raises(ValueError, match="save_only_model"):
        last_checkpoint(tmp_path)


def test_what_was_passed_over_does_not_look_whole_while_it_is_written_again(
    tmp_path: Path,
) -> None:
    class Looks(transformers.Trainer):
        def save_model(self, *given: Any, **named: Any) -> None:
            seen.append(last_checkpoint(tmp_path))
            super().save_model(*given, **named)

    seen: list[str | None] = []
    options = {"save_strategy": "steps", "save_steps": 1, "max_steps": 1}
    first = trainer(tmp_path, UndauntedCallback(), **options)
    first.train()
    first.__class__ = Looks
    first.train()
    assert seen == [None]
    assert last_checkpoint(tmp_path) is not None


class StopsInEvaluation(transformers.TrainerCallback):
    """Counts what is evaluated, and is told to stop in a batch of it."""

    def __init__(self, step: int = -1, batch: int = 0) -> None:
        self.at, self.batches, self.whole = (step, batch), [], []

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.batches.append(state.global_step)
        torch.rand(1)  # as a loader that shuffles draws
        if (state.global_step, self.batches.count(state.global_step)) == self.at:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.whole.append(state.global_step)


def evaluated(folder: Path, stops: StopsInEvaluation, every: str) -> tuple[Any, ...]:
    torch.manual_seed(3)
    made = trainer(
        *(folder, stops, UndauntedCallback()),
        max_steps=4,
        eval_strategy=every,
        eval_steps=2,
        save_strategy=every,
        save_steps=2,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=1,
        load_best_model_at_end=True,
        lr_scheduler_type="reduce_lr_on_plateau",
        lr_scheduler_kwargs={"patience": 0, "factor": 0.5},
    )
    made.train(resume_from_checkpoint=last_checkpoint(folder))
    parameters = torch.cat([each.detach().flatten() for each in made.model.parameters()]).tolist()
    history = [line for line in made.state.log_history if "eval_loss" in line]
    return parameters, [line["eval_loss"] for line in history], made.state.best_metric


@pytest.mark.parametrize("at", [(2, 1), (2, 8), (4, 3)])
@pytest.mark.parametrize("every", ["steps", "epoch"])
def test_a_stop_does_not_wait_for_an_evaluation(
    tmp_path: Path, at: tuple[int, int], every: str
) -> None:
    whole = StopsInEvaluation()
    undisturbed = evaluated(tmp_path / "undisturbed", whole, every)
    first, again, last = StopsInEvaluation(*at), StopsInEvaluation(at[0], 2), StopsInEvaluation()
    for stops in (first, again):  # the second one is stopped in what it makes up
        with pytest.raises(SystemExit) as end:
            evaluated(tmp_path / "stopped", stops, every)
        assert end.value.code == 75
    assert first.batches.count(at[0]) == at[1]
    assert again.batches == [at[0]] * 2
    assert Path(last_checkpoint(tmp_path / "stopped") or "").name == f"checkpoint-{at[0]}"
    assert evaluated(tmp_path / "stopped", last, every) == undisturbed
    assert first.whole + last.whole == whole.whole, "what was left is made up"


class Dropping(Model):
    """Random numbers decide what it comes to; its evaluations have one more output."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        found = super().forward(torch.nn.functional.dropout(x, training=self.training))
        return found | {"other": found["logits"].expand(-1, 2)}


def trained(
    folder: Path,
    stops: Any,
    *callbacks: Any,
    metric: Any = None,
    data: Any = None,
    **options: Any,
) -> Any:
    """Train from the newest checkpoint, with evaluations of 8 batches; return what it comes to."""
    torch.manual_seed(3)
    given = {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 2, "save_steps": 2}
    given |= {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 1}
    given |= {"save_strategy": "steps", "metric_for_best_model": "loss"}
    made = trainer(folder, *callbacks, stops, UndauntedCallback(), **given | options)
    made.model = made.model_wrapped = Dropping()
    made.compute_metrics = metric
    made.train_dataset = data or [
        {"x": torch.arange(4) + float(number), "labels": torch.ones(1)} for number in range(8)
    ]
    for each in callbacks:
        each.trainer = made
    made.train(resume_from_checkpoint=last_checkpoint(folder), ignore_keys_for_eval=["other"])
    state = made.state
    losses = [
        (line["step"], name, line[name])
        for line in state.log_history
        for name in line
        if name.startswith("eval_") and "_per_second" not in name and "runtime" not in name
    ]
    counters = [
        each.early_stopping_patience_counter
        for each in made.callback_handler.callbacks
        if isinstance(each, transformers.EarlyStoppingCallback)
    ]
    parameters = [each.tolist() for each in made.model.parameters()]
    return parameters, losses, state.best_metric, state.global_step, counters


class StopsAtStep(StopsInEvaluation):
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step + 1 == self.at[0]:
            os.kill(os.getpid(), signal.SIGTERM)


def outputs(prediction: Any) -> dict[str, float]:
    return {"outputs": float(isinstance(prediction.predictions, tuple))}


PATIENT = {"metric_for_best_model": "outputs", "load_best_model_at_end": True}


@pytest.mark.parametrize(
    ("stops", "options"),
    [
        pytest.param(
            StopsInEvaluation(2, 10),
            {"several": True, "metric_for_best_model": "a_loss"},
            id="second set of data",
        ),
        pytest.param(
            *(StopsInEvaluation(2, 3), {"restore_callback_states_from_checkpoint": True}),
            id="states of callbacks",
        ),
        pytest.param(StopsInEvaluation(3, 2), {"max_steps": 3}, id="last step, within an epoch"),
        pytest.param(
            *(StopsInEvaluation(4, 2), PATIENT | {"metric": outputs, "max_steps": 8}),
            id="nothing follows, early",
        ),
        pytest.param(
            *(StopsAtStep(2), {"eval_strategy": "epoch", "save_strategy": "epoch"}),
            id="end of an epoch",
        ),
        pytest.param(
            StopsInEvaluation(1, 2),
            {"eval_steps": 1, "per_device_train_batch_size": 2}
            | {"accelerator_config": {"use_seedable_sampler": False}},
            id="order by random numbers",
        ),
    ],
)
def test_what_is_left_and_made_up_comes_to_the_same(
    tmp_path: Path, stops: StopsInEvaluation, options: dict[str, Any]
) -> None:
    early = [transformers.EarlyStoppingCallback(1)] if "metric" in options else []
    undisturbed = trained(tmp_path / "undisturbed", StopsInEvaluation(), *early, **options)
    early = [transformers.EarlyStoppingCallback(1) for _ in early]
    with pytest.raises(SystemExit) as end:
        trained(tmp_path / "stopped", stops, *early, **options)
    assert end.value.code == 75
    early = [transformers.EarlyStoppingCallback(1) for _ in early]
    assert trained(tmp_path / "stopped", StopsInEvaluation(), *early, **options) == undisturbed


def test_callbacks_do_not_keep_what_they_saw_of_an_evaluation_that_is_left(tmp_path: Path) -> None:
    def told(prediction: Any) -> dict[str, float]:
        os.kill(os.getpid(), signal.SIGTERM)  # when the last batch is over
        return outputs(prediction)

    early = transformers.EarlyStoppingCallback(3)
    with pytest.raises(SystemExit):
        trained(tmp_path, StopsInEvaluation(), early, metric=told, **PATIENT)
    assert early.early_stopping_patience_counter == 0
    state = transformers.TrainerState.load_from_json(
        f"{last_checkpoint(tmp_path)}/trainer_state.json"
    )
    assert not any("eval_loss" in line for line in state.log_history)


def test_the_evaluation_at_the_start_is_left_too(tmp_path: Path) -> None:
    stops = StopsInEvaluation(0, 3)
    with pytest.raises(SystemExit) as end:
        trained(tmp_path, stops, eval_on_start=True)
    assert (end.value.code, stops.batches, last_checkpoint(tmp_path)) == (75, [0] * 3, None)


def test_an_evaluation_that_is_due_after_the_step_of_a_stop_is_made_up(tmp_path: Path) -> None:
    stops, last = StopsInEvaluation(), StopsInEvaluation()
    options = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 1}
    with pytest.raises(SystemExit):
        trainer(tmp_path, Stops(), stops, UndauntedCallback(), **options).train()
    assert stops.batches == []
    trainer(tmp_path, last, UndauntedCallback(), **options).train(
        resume_from_checkpoint=last_checkpoint(tmp_path)
    )
    assert last.whole == [1, 2]


class Evaluates(transformers.TrainerCallback):
    """Has its trainer evaluate in a hook, but not in one of that evaluation."""

    trainer: Any = None  # by `trained`
    makes = False

    def __init__(self, hook: str, method: str) -> None:
        self.method = method
        setattr(self, hook, self.evaluate)

    def evaluate(self, *_: Any, **__: Any) -> None:
        if not self.makes:
            self.makes = True
            getattr(self.trainer, self.method)(self.trainer.eval_dataset)
            self.makes = False


class StopsInOther(StopsInEvaluation):
    """Is told to stop in the second batch of an evaluation that a callback makes."""

    def __init__(self, step: int, evaluates: Evaluates) -> None:
        super().__init__(step)
        self.evaluates = evaluates

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        torch.rand(1)  # as a loader that shuffles draws
        if self.evaluates.makes and state.global_step == self.at[0]:
            self.batches.append(state.global_step)
            if len(self.batches) == 2:
                os.kill(os.getpid(), signal.SIGTERM)


HOOKS = ["on_step_begin", "on_step_end", "on_log", "on_evaluate", "on_save", "on_epoch_end"]


@pytest.mark.parametrize("method", ["evaluate", "predict"])
@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("step", [2, 3])  # an epoch ends after step 2
def test_an_evaluation_that_a_callback_makes_is_left(
    tmp_path: Path, hook: str, method: str, step: int
) -> None:
    """The next start comes to the same, with those that the trainer makes itself."""
    options = {"eval_strategy": "epoch", "save_strategy": "epoch", "logging_steps": 1}
    options |= {"load_best_model_at_end": True, "metric_for_best_model": "outputs"}
    options |= {"restore_callback_states_from_checkpoint": True}
    if step == 3 and hook in ("on_evaluate", "on_save", "on_epoch_end"):
        options |= {"eval_strategy": "steps", "save_strategy": "steps", "save_steps": 1}
        options |= {"eval_steps": 1, "per_device_train_batch_size": 8}

    def train(folder: Path, step: int) -> tuple[tuple[Any, ...], list[int]]:
        evaluates, early = Evaluates(hook, method), transformers.EarlyStoppingCallback(10)
        stops = StopsInOther(step, evaluates)
        result = trained(folder, stops, evaluates, early, metric=outputs, **options)
        return [each for each in result if each is not result[1]], stops.batches

    undisturbed, _ = train(tmp_path / "undisturbed", -1)
    with pytest.raises(SystemExit) as end:
        train(tmp_path / "stopped", step)
    assert end.value.code == 75
    assert train(tmp_path / "stopped", -1)[0] == undisturbed


@pytest.mark.parametrize("saved", [True, False])
def test_an_evaluation_at_the_end_of_training(tmp_path: Path, saved: bool) -> None:
    """It is left if the model that is trained is saved."""
    evaluates = Evaluates("on_train_end", "evaluate")
    stops = StopsInOther(4, evaluates)
    options = {"save_strategy": "steps" if saved else "no", "eval_strategy": "no"}
    if not saved:
        trained(tmp_path, stops, evaluates, **options)
    else:
        with pytest.raises(SystemExit) as end:
            trained(tmp_path, stops, evaluates, **options)
        assert end.value.code == 75
    assert len(stops.batches) == (2 if saved else 8)


@pytest.mark.parametrize("hook", ["on_step_end", "on_epoch_end", "on_evaluate"])
def test_a_loop_of_a_callback_is_left(tmp_path: Path, hook: str) -> None:
    """As one that generates from prompts."""

    class Generates(transformers.TrainerCallback):
        seen: list[int]

        def __init__(self, *, told: bool) -> None:
            self.told, self.seen = told, []
            setattr(self, hook, self.generate)

        def generate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            (undaunted,) = (
                each
                for each in self.trainer.callback_handler.callbacks
                if isinstance(each, UndauntedCallback)
            )
            for prompt in undaunted.session.evaluating(range(9)):
                self.seen.append(state.global_step)
                if self.told and (state.global_step, prompt) == (2, 1):
                    os.kill(os.getpid(), signal.SIGTERM)

    undisturbed = trained(tmp_path / "undisturbed", StopsInEvaluation(), Generates(told=False))
    generates = Generates(told=True)
    with pytest.raises(SystemExit) as end:
        trained(tmp_path / "stopped", StopsInEvaluation(), generates)
    assert (end.value.code, generates.seen.count(2)) == (75, 2)
    assert Path(last_checkpoint(tmp_path / "stopped") or "").name == "checkpoint-2"
    again = trained(tmp_path / "stopped", StopsInEvaluation(), Generates(told=False))
    assert again == undisturbed


class Endless(torch.utils.data.IterableDataset):
    """Does not say how long it is."""

    def __iter__(self) -> Any:
        return iter({"x": torch.arange(4) + float(i), "labels": torch.ones(1)} for i in range(8))


@pytest.mark.parametrize("stops", [StopsAtStep(2), StopsInEvaluation(2, 3), StopsAtStep(1)])
def test_epochs_of_data_without_length(tmp_path: Path, stops: Any) -> None:
    """The trainer itself ends the epoch once more when it goes on."""
    options = {"eval_strategy": "epoch", "save_strategy": "epoch", "data": Endless()}
    early = transformers.EarlyStoppingCallback(9)
    whole, last = StopsInEvaluation(), StopsInEvaluation()
    undisturbed = trained(tmp_path / "undisturbed", whole, early, **options)
    with pytest.raises(SystemExit):
        trained(tmp_path / "stopped", stops, transformers.EarlyStoppingCallback(9), **options)
    early = transformers.EarlyStoppingCallback(9)
    assert trained(tmp_path / "stopped", last, early, **options) == undisturbed
    assert stops.whole + last.whole == whole.whole
