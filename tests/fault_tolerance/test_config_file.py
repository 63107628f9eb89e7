import os
import stat
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.fault_tolerance import config_file
from undaunted.fault_tolerance.config_file import MissingSectionError, read_section, write_section


@pytest.fixture
def path(tmp_path):
    return tmp_path / "settings.yaml"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fault_tolerance: {a: 1}", {"a": 1}),
        ("x: [1, {y: {fault_tolerance: {a: none}}}]", {"a": "none"}),
        ("fault_tolerance:\n  # a: 1\n", {}),
        ("x: &x {y: *x}\nfault_tolerance: {a: 1}", {"a": 1}),
    ],
)
def test_section_is_found(path, text, expected):
    path.write_text(text)
    assert read_section(path) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no section 'fault_tolerance'"),
        ("fault-tolerance: {a: 1}", "has no section"),
        ("a: {fault_tolerance: {}}\nb: {fault_tolerance: {}}", "has 2 sections"),
        ("fault_tolerance: {}\nb: {fault_tolerance: {}}", "has 2 sections"),
        ("fault_tolerance: 3", "is 3, not settings such as"),
        ("fault_tolerance: [a]", "not settings such as"),
        ("fault_tolerance: {1: 2}", "1 in 'fault_tolerance' is not the name"),
        ("a: [1", "is not YAML: while parsing"),
        ("a: !!python/object/apply:os.system [true]", "is not YAML: could not determine"),
        ("[" * 5000, "is not YAML"),
        ("a: 2026-99-99", "is not YAML"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(path, text, message):
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        read_section(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "twice"),
    [
        ("fault_tolerance: {a: 1, a: 2}", "a"),
        ("x: [{fault_tolerance: {s: {step: 1, step: 2}}}]", "step"),
        ("x: {a: 1, a: 2}\nfault_tolerance: {a: 1}", ""),  # not ours
        ("x: &x {a: 1}\nfault_tolerance: {<<: *x, a: 2}", ""),
    ],
)
def test_a_setting_given_twice_is_refused(path, text, twice):
    path.write_text(text)
    if not twice:
        assert read_section(path)["a"] in {1, 2}
        return
    with pytest.raises(ValueError, match=f"'{twice}' is given twice in 'fault_tolerance'; keep"):
        read_section(path)


def test_a_pipe_is_read_and_one_that_nobody_writes_to_is_given_up(path, monkeypatch):
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=("fault_tolerance: {a: 1}",))
    writer.start()
    assert read_section(path) == {"a": 1}
    writer.join()
    monkeypatch.setattr(config_file, "_READ_S", 0.02)
    with pytest.raises(OSError, match=r"no answer within 0\.02 s"):
        read_section(path)
    path.write_text("let the reader go")


def test_missing_section_has_its_own_class(path):
    path.write_text("a: 1")
    with pytest.raises(MissingSectionError):
        read_section(path)


def test_files_that_cannot_be_settings(path):
    with pytest.raises(FileNotFoundError):
        read_section(path)
    path.write_bytes(b"\0" * 5_000_000)
    with pytest.raises(ValueError, match="larger than 4 MiB"):
        read_section(path)


def test_written_file_replaces_an_old_one_and_is_private(path):
    path.write_text("old")
    write_section(path, {"b": 1, "a": {"x": None}})
    assert path.read_text() == "fault_tolerance:\n  b: 1\n  a:\n    x: null\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_nothing_is_left_where_it_cannot_be_written(path):
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        write_section(path, {"a": 1})
    assert list(path.parent.iterdir()) == [path]


@given(st.binary(max_size=60))
def test_any_file_is_read_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(b"fault_tolerance:\n  " + content)
    try:
        read_section(path)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - other exceptions fail the test
