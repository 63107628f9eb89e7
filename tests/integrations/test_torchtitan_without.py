"""The mixin for torchtitan around a stand-in of its trainer; torchtitan is not needed."""

from __future__ import annotations

from typing import Any

import pytest

from undaunted.integrations.torchtitan import UndauntedTrainerMixin


class Manager:
    """Saves nothing: torchtitan's has no other attributes then."""

    enable = False

    def save(self, curr_step: int, last_step: bool = False) -> bool:
        return False

    def load(self, step: int = -1) -> bool:
        return False

    def maybe_wait_for_saving(self) -> None:
        pass


class Validator:
    def __init__(self) -> None:
        self.made = 0

    def validate(self, model: Any) -> None:
        self.post_dataloading_process(model)
        self.made += 1

    def post_dataloading_process(self, batch: Any) -> None:
        pass


class TheirTrainer:
    gradient_accumulation_steps = num_pipeline_parallel_microbatches = 1
    dataloader = None

    def __init__(self) -> None:
        self.step, self.checkpointer, self.validator = 0, Manager(), Validator()

    def train(self) -> None:
        while self.should_continue_training():
            self.step += 1
            self.train_step(None)
        self.validator.validate(None)

    def train_step(self, data_iterator: Any) -> None:
        pass

    def should_continue_training(self) -> bool:
        return self.step < 3

    def close(self) -> None:
        pass


class Trainer(UndauntedTrainerMixin, TheirTrainer):
    pass


def test_nothing_is_saved_and_the_last_step_is_validated() -> None:
    trainer = Trainer()
    trainer.train()
    assert (trainer.step, trainer.validator.made) == (3, 1)


@pytest.mark.parametrize("attribute", ["close", "should_continue_training"])
def test_a_trainer_of_another_version_is_refused(
    monkeypatch: pytest.MonkeyPatch, attribute: str
) -> None:
    monkeypatch.delattr(TheirTrainer, attribute)
    with pytest.raises(RuntimeError, match=rf"torchtitan .*Trainer\.{attribute}"):
        Trainer().train()


def test_a_manager_that_saves_needs_more() -> None:
    trainer = Trainer()
    trainer.checkpointer.enable = True
    with pytest.raises(RuntimeError, match=r"checkpointer\.last_save_model_only"):
        trainer.train()
