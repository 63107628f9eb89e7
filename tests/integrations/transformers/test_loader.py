"""A `Trainer` with `LoaderMixin` has the same samples and the same result, whatever happens."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.launcher import Launcher
from undaunted.data import DataChangedError

pytest.importorskip("transformers")
from transformers import TrainerCallback

from tests.integrations.transformers import loader

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SCRIPT = str(Path(loader.__file__))
LIMIT_S = 180.0  # imports take long on a busy machine
EPOCHS = range(6), range(6, 12)  # if the last one is short


class InterruptionError(Exception):
    """Of training, as by a kill."""


class Interrupted(TrainerCallback):  # type: ignore[misc]
    """Ends training by an exception after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            raise InterruptionError


def interrupted(folder: Path, step: int, **settings: Any) -> None:
    with pytest.raises(InterruptionError):
        loader.train(folder, callbacks=[Interrupted(step)], **settings)


@pytest.mark.parametrize("drop_last", [True, False])
def test_the_second_epoch_goes_on_in_its_middle_to_the_same_bit(
    tmp_path: Path, *, drop_last: bool
) -> None:
    """As not in huggingface/accelerate 4071, 4233 and modelscope/ms-swift 10050.

    There the rest of an epoch, or the one after it, had another order after a restart.
    """
    settings = {"num_train_epochs": 3, "dataloader_drop_last": drop_last}
    expected = loader.train(tmp_path / "undisturbed", **settings)
    interrupted(tmp_path / "job", 9, **settings)  # from 8, in the second epoch
    interrupted(tmp_path / "job", 13, **settings)  # from 12, in the third one
    assert loader.train(tmp_path / "job", **settings) == expected
    seen = loader.samples(tmp_path / "job")
    assert seen == loader.samples(tmp_path / "undisturbed")
    assert len(seen) == 3 * (5 if drop_last else 6)
    first, second = (sorted(sum((sum(seen[at], ()) for at in epoch), ())) for epoch in EPOCHS)
    assert drop_last or first == second == list(range(44)), "each once in an epoch"


def test_other_ranks_have_the_same_samples_in_each_step(tmp_path: Path) -> None:
    """Two ranks, of which one is killed; then three, whose shares of a step are unequal."""
    (tmp_path / "alone").mkdir()
    loader.train(tmp_path / "alone")

    def launched(ranks: int, *given: str) -> tuple[int, str]:
        options = ["--nproc-per-node", str(ranks), "--max-restarts", "1"]
        options += ["--preload", "transformers.trainer"]
        launcher = Launcher([*options, SCRIPT, "job", *given], tmp_path)
        try:
            return launcher.finish(LIMIT_S), launcher.text
        finally:
            launcher.close()

    code, text = launched(2, "kill=1:5")
    assert code == 0, text
    assert (tmp_path / "job" / "killed").exists()
    assert loader.samples(tmp_path / "job") == loader.samples(tmp_path / "alone")
    for checkpoint in ("checkpoint-8", "checkpoint-10"):
        shutil.rmtree(tmp_path / "job" / checkpoint)
    code, text = launched(3)
    assert code == 0, text
    assert loader.samples(tmp_path / "job") == loader.samples(tmp_path / "alone")
    assert len({path.read_text() for path in (tmp_path / "job").glob("result-*")}) == 1


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"ignore_data_skip": True}, "ignore_data_skip"),
    ({"train_sampling_strategy": "group_by_length"}, "train_sampling_strategy"),
    ({"global_batch": 7}, "multiple of micro_batch"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_what_does_not_fit_is_refused_before_the_first_step(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        loader.train(tmp_path / "job", **settings)
    assert loader.samples(tmp_path / "job") == {}


def test_other_data_or_another_global_batch_is_refused_when_training_goes_on(
    tmp_path: Path,
) -> None:
    interrupted(tmp_path / "job", 3)
    with pytest.raises(DataChangedError, match="44"):
        loader.train(tmp_path / "job", samples=45)
    with pytest.raises(ValueError, match="global_batch was 8 and is 4"):
        loader.train(tmp_path / "job", global_batch=4)
