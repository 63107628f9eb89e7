from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.checkpointing.format import names

STEPS = st.integers(0, 10**18)
SESSIONS = st.from_regex(r"[0-9a-z]{1,20}", fullmatch=True).filter(lambda s: s != "deleted")


def readings(name: str) -> list[str]:
    """As what a name is understood."""
    return [
        reader.__name__
        for reader in (
            names.read_step,
            names.read_attempt,
            names.read_replaced,
            names.is_deleted,
            names.read_session_file,
        )
        if not (reader(name) is None or reader(name) is False)
    ]


@given(STEPS, SESSIONS, STEPS)
def test_every_name_is_read_as_what_it_is_and_as_nothing_else(
    step: int, session: str, number: int
) -> None:
    attempt = names.attempt(step, session, number)
    assert names.read_step(names.step(step)) == step
    assert names.read_attempt(attempt.folder()) == attempt
    assert names.read_replaced(attempt.replaced()) == attempt
    assert names.read_object(names.step(step), attempt.prefix()) == attempt
    assert names.read_object(attempt.prefix(), names.step(step)) is None
    assert names.read_session_file(names.session_file(session)) == session
    assert readings(names.step(step)) == ["read_step"]
    assert readings(attempt.folder()) == ["read_attempt"]
    assert readings(attempt.replaced()) == ["read_replaced"]
    assert readings(names.deleted(step, session)) == ["is_deleted"]
    assert readings(names.session_file(session)) == ["read_session_file"]


@pytest.mark.parametrize(
    "name",
    [
        "step-1",
        "step-0000000100",
        "step-00000100 ",
        "step-00000100.bak",
        "step-0000010\u0660",
        ".step-00000100",
        ".step-00000100.UPPER-0",
        ".step-00000100.a/b-0",
        "best",
        ".epoch",
        "",
    ],
)
def test_other_names_are_not_ours(name: str) -> None:
    assert readings(name) == []


def test_names_sort_like_steps() -> None:
    steps = [0, 9, 10, 99_999_999]
    assert sorted(names.step(step) for step in steps) == [names.step(step) for step in steps]


@pytest.mark.parametrize(
    ("step", "session", "number", "said"),
    [
        (-1, "a", 0, "at least 0"),
        (1, "a", -1, "at least 0"),
        (1, "", 0, "session ''"),
        (1, "../x", 0, "lower-case letters and digits"),
        (1, "A", 0, "lower-case"),
        (1, "deleted", 0, "session"),
    ],
)
def test_what_cannot_be_a_name_is_refused(step: int, session: str, number: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        names.attempt(step, session, number)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/passwd", "a\0b", "x" * 256])
def test_files_stay_in_their_folder(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name"):
        names.check_file(name)


def test_usual_file_names() -> None:
    for name in ("__0_0.distcp", ".metadata", "undaunted.json", "model__3_1.distcp"):
        assert names.check_file(name) == name
