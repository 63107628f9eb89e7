"""Which checkpoint a trainer goes on from; the callback where there is no transformers."""

from __future__ import annotations

import importlib.util
import json
import logging
import zipfile
from pathlib import Path

import pytest

from undaunted.base.text import count
from undaunted.integrations.transformers import LoaderMixin, UndauntedCallback, last_checkpoint


def saved(folder: Path, step: int, *, ranks: int = 2, noted: bool = True) -> Path:
    """A checkpoint with the files by which it is judged."""
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir()
    for rank in range(ranks):
        name = f"rng_state_{rank}.pth" if ranks > 1 else "rng_state.pth"
        with zipfile.ZipFile(checkpoint / name, "w") as file:
            file.writestr("data", "x" * 100)
    noticed = {"undaunted": {"world_size": ranks}} if noted else {}
    state = {"global_step": step, "stateful_callbacks": noticed}
    (checkpoint / "trainer_state.json").write_text(json.dumps(state))
    return checkpoint


def name(found: str | None) -> str | None:
    return None if found is None else Path(found).name


def test_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-best").mkdir()
    assert last_checkpoint(tmp_path) is None
    assert last_checkpoint(tmp_path / "missing") is None


def test_the_newest_one_by_number(tmp_path: Path) -> None:
    for step in (900, 1000, 20):
        saved(tmp_path, step)
    assert name(last_checkpoint(tmp_path)) == "checkpoint-1000"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("trainer_state.json", None),
        ("trainer_state.json", b""),
        ("trainer_state.json", b'{"global_step": 20, "stateful_'),
        ("trainer_state.json", b'{"global_step": 15, "stateful_callbacks": {}}'),
        ("trainer_state.json", b"[]"),
        ("rng_state_1.pth", None),
        ("rng_state_1.pth", b""),
        ("optimizer.pt", b"PK\x03\x04torn"),
    ],
)
def test_what_is_torn_is_passed_over(tmp_path: Path, file: str, content: bytes | None) -> None:
    saved(tmp_path, 10)
    torn = saved(tmp_path, 20)
    if content is None:
        (torn / file).unlink()
    else:
        (torn / file).write_bytes(content)
    assert name(last_checkpoint(tmp_path)) == "checkpoint-10"
    assert torn.exists()


@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize(("ranks", "now"), [(2, 4), (4, 2), (1, 2), (2, 1)])
def test_it_may_be_of_another_number_of_ranks_which_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    ranks: int,
    now: int,
    noted: bool,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(now))
    saved(tmp_path, 10, ranks=now)
    saved(tmp_path, 20, ranks=ranks, noted=noted)
    with caplog.at_level(logging.WARNING, "undaunted"):
        assert name(last_checkpoint(tmp_path)) == "checkpoint-20"
    (line,) = caplog.messages
    assert "checkpoint-20" in line
    assert f"of {count(ranks, 'rank')}, and there are {now} now" in line
    assert ("without UndauntedCallback" in line) != noted


def test_one_of_an_older_trainer_has_no_states_of_callbacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    (saved(tmp_path, 20) / "trainer_state.json").write_text('{"global_step": 20}')
    assert name(last_checkpoint(tmp_path)) == "checkpoint-20"


def test_one_with_the_model_only_is_passed_over_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    saved(tmp_path, 10)
    for file in saved(tmp_path, 20).glob("rng_state_*"):
        file.unlink()
    with caplog.at_level(logging.WARNING, "undaunted"):
        assert name(last_checkpoint(tmp_path)) == "checkpoint-10"
    (line,) = caplog.messages
    assert "checkpoint-20 (has the model only" in line


def test_training_does_not_begin_anew_beside_checkpoints_of_no_use(tmp_path: Path) -> None:
    for file in saved(tmp_path, 20).glob("rng_state_*"):
        file.unlink()
    with pytest.raises(ValueError, match=r"checkpoint-20 \(has the model only.*move them away"):
        last_checkpoint(tmp_path)
    (saved(tmp_path, 30) / "rng_state_1.pth").unlink()
    with pytest.raises(ValueError, match=r"checkpoint-30 \(without .* rank 1: cut short"):
        last_checkpoint(tmp_path)


def test_after_a_kill_in_the_first_save_it_begins_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (saved(tmp_path, 20) / "trainer_state.json").unlink()
    with caplog.at_level(logging.WARNING, "undaunted"):
        assert last_checkpoint(tmp_path) is None
    assert "checkpoint-20 (without a whole trainer_state.json" in caplog.text


@pytest.mark.parametrize("url", ["s3://bucket/out", "file:///out", Path("gs://bucket/out")])
def test_a_url_is_refused(url: str | Path) -> None:
    with pytest.raises(ValueError, match="is a URL"):
        last_checkpoint(url)


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is not None, reason="transformers is there"
)
def test_without_transformers_the_text_says_what_to_install() -> None:
    with pytest.raises(ImportError, match=r"undaunted\[transformers\]"):
        UndauntedCallback()


def test_a_trainer_that_the_loader_does_not_fit_is_refused_as_training_begins() -> None:
    class Older:
        def get_train_dataloader(self) -> None:
            pass

        def get_batch_samples(self, batches: object, count: int) -> None:
            pass

    class Trainer(LoaderMixin, Older):
        pass

    with pytest.raises(RuntimeError, match=r"_run_epoch is not there.*get_batch_samples takes no"):
        Trainer(global_batch=8).get_train_dataloader()
