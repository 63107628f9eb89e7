"""Which checkpoint a trainer goes on from; the callback where there is no transformers."""

from __future__ import annotations

import importlib.util
import json
import zipfile
from pathlib import Path

import pytest

from undaunted.integrations.transformers import UndauntedCallback, last_checkpoint


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


def test_it_may_be_of_another_number_of_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    saved(tmp_path, 10)
    assert name(last_checkpoint(tmp_path)) == "checkpoint-10"
    saved(tmp_path, 20, ranks=1)
    assert name(last_checkpoint(tmp_path)) == "checkpoint-20"


@pytest.mark.parametrize(("ranks", "newest"), [("2", "checkpoint-20"), ("3", None)])
def test_one_of_a_trainer_without_the_callback_is_of_as_many_ranks_as_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: str, newest: str | None
) -> None:
    monkeypatch.setenv("WORLD_SIZE", ranks)
    saved(tmp_path, 20, noted=False)
    assert name(last_checkpoint(tmp_path)) == newest


def test_one_with_the_model_only_has_no_generators(tmp_path: Path) -> None:
    for file in saved(tmp_path, 20).glob("rng_state_*"):
        file.unlink()
    assert name(last_checkpoint(tmp_path)) == "checkpoint-20"


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is not None, reason="transformers is there"
)
def test_without_transformers_the_text_says_what_to_install() -> None:
    with pytest.raises(ImportError, match=r"undaunted\[transformers\]"):
        UndauntedCallback()
