"""A session runs steps again. No launcher; numbers that are wrong are really computed."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import struct
import threading
from pathlib import Path

import pytest

from undaunted import training
from undaunted.base import torch_ranks
from undaunted.progress import writer as writer_module
from undaunted.progress.writer import NullWriter
from undaunted.training import Rerun, Session, StopReason, check
from undaunted.training import attempts as attempts_module


@pytest.fixture(autouse=True)
def here(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setattr(attempts_module, "_alone", None)


@pytest.fixture
def page(monkeypatch):
    """Events that a rank puts into its page."""
    events: list[tuple[str, str]] = []

    class Page(NullWriter):
        def event(self, name, text=""):
            events.append((name, text))

    monkeypatch.setattr(writer_module, "current", Page("a test"))
    return events


class Multiplier:
    """Multiplies numbers, and flips a bit of a result: on one slot, once or always."""

    def __init__(self, slot, at, *, always):
        self.slot, self.at, self.always = slot, at, always
        self.count = 0

    def __call__(self, a, b):
        result = struct.unpack("<f", struct.pack("<f", a * b))[0]
        self.count += 1
        bad = os.environ["LOCAL_RANK"] == self.slot
        hit = self.count >= self.at if self.always else self.count == self.at
        if bad and hit:
            (bits,) = struct.unpack("<I", struct.pack("<f", result))
            (result,) = struct.unpack("<f", struct.pack("<I", bits | 0x7F800000))
        return result


def run(folder, multiply, *, start=0, steps=6, **settings):
    """Train; return the session, and what is saved. The state is a weight."""
    path = folder / "state.json"
    weight = json.loads(path.read_text())["weight"] if path.exists() else 1.5
    start = json.loads(path.read_text())["next"] if path.exists() else start

    def save(iteration):
        path.write_text(json.dumps({"next": iteration + 1, "weight": weight}))

    with Session(save=save, rerun=Rerun(folder=folder, **settings)) as session:
        for iteration in range(start, steps):
            with session.step(iteration):
                for _ in session.attempts():
                    loss = multiply(weight, 1.0 + iteration)
                    session.check(loss, "loss")
                weight = weight * 0.5 + loss * 0.01  # the optimizer
            if session.should_stop(iteration):
                break
    assert math.isfinite(weight)
    return session, weight


def test_nothing_odd(tmp_path, page):
    session, _ = run(tmp_path, Multiplier("7", 1, always=True))
    assert session.stop is None
    assert session.exit_code == 0
    assert page == []


def test_an_error_that_comes_once(tmp_path, page, caplog):
    session, _ = run(tmp_path, Multiplier("0", 3, always=False))
    assert (session.stop.reason, session.stop.iteration) == (StopReason.INVALID, 1)
    assert session.exit_code == 17
    assert "a transient error" in session.stop.text
    assert "loss is not finite in iteration 2, computed on cpu:0 of node" in session.stop.text
    assert [name for name, _ in page] == ["odd_result", "stop_invalid"]
    assert "Possible transient error!" in caplog.text
    assert not (tmp_path / "state.json").exists()


def test_an_error_that_comes_once_need_not_end_the_job(tmp_path, page):
    undisturbed = run(tmp_path, Multiplier("7", 1, always=True))[1]
    (tmp_path / "state.json").unlink(missing_ok=True)
    session, weight = run(
        tmp_path, Multiplier("0", 3, always=False), go_on_after=["transient_error"]
    )
    assert session.stop is None
    assert weight == undisturbed
    assert [name for name, _ in page] == ["odd_result"]


def test_an_error_of_a_slot_is_found_on_another(tmp_path, page, monkeypatch):
    multiply = Multiplier("0", 3, always=True)
    session, _ = run(tmp_path, multiply)
    assert (session.stop.reason, session.stop.iteration) == (StopReason.SUSPECT, 1)
    assert session.exit_code == 16
    assert json.loads((tmp_path / "state.json").read_text())["next"] == 2
    assert [name for name, _ in page] == ["stop_suspect"]

    # On the same slot again nothing is learned.
    session, _ = run(tmp_path, multiply)
    assert session.stop.reason is StopReason.SUSPECT

    monkeypatch.setenv("LOCAL_RANK", "1")
    session, _ = run(tmp_path, multiply)
    assert session.stop.reason is StopReason.INVALID
    assert session.exit_code == 17
    assert "computed on cpu:0 of node" in session.stop.text
    assert "a persistent error of that place" in session.stop.text
    assert not (tmp_path / "odd-result-0.json").exists()

    session, _ = run(tmp_path, multiply)
    assert session.stop is None, "whoever starts it once more there gets on"


def test_after_the_verdict_the_job_can_go_on_elsewhere(tmp_path, page, monkeypatch):
    undisturbed = run(tmp_path, Multiplier("7", 1, always=True))[1]
    multiply = Multiplier("0", 3, always=True)
    forgiving = {"go_on_after": ["persistent_error"]}
    assert run(tmp_path, multiply, **forgiving)[0].exit_code == 16
    monkeypatch.setenv("LOCAL_RANK", "1")
    session, weight = run(tmp_path, multiply, **forgiving)
    assert (session.stop, weight) == (None, undisturbed)
    assert "persistent" in page[-1][1]


def test_a_result_that_is_odd_everywhere_is_correct(tmp_path, page, monkeypatch):
    def compute(weight, number):
        return math.nan if number == 4.0 else weight * number

    assert run(tmp_path, compute)[0].exit_code == 16
    monkeypatch.setenv("LOCAL_RANK", "1")
    session, _ = run(tmp_path, compute, go_on_after=["transient_error", "persistent_error"])
    assert session.exit_code == 17
    assert "a correct result, however odd" in session.stop.text


def test_without_a_folder_there_is_no_second_opinion(page):
    with Session(rerun=Rerun()) as session, session.step(3):
        for _ in session.attempts():
            session.check(math.nan, "loss")
    assert session.stop.reason is StopReason.INVALID
    assert "Rerun(folder=...) would compute it elsewhere" in session.stop.text


def test_before_the_first_iteration_nothing_can_be_saved(tmp_path, page):
    saved = []
    with Session(save=saved.append, rerun=Rerun(folder=tmp_path)) as session, session.step(0):
        for _ in session.attempts():
            session.check(math.nan, "loss")
    assert session.exit_code == 17
    assert saved == []


def test_a_question_about_another_iteration_is_left(tmp_path, page, monkeypatch, caplog):
    run(tmp_path, Multiplier("0", 3, always=True))
    monkeypatch.setenv("LOCAL_RANK", "1")
    (tmp_path / "state.json").unlink()
    session, _ = run(tmp_path, Multiplier("7", 1, always=True))
    assert session.stop is None
    assert "is about iteration 2 on 1 ranks, but iteration 0 on 1 comes" in caplog.text
    assert not (tmp_path / "odd-result-0.json").exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"ranks": 1, "iteration": 2}'])
def test_a_damaged_question_is_left(tmp_path, page, caplog, content):
    run(tmp_path, Multiplier("0", 3, always=True))
    (tmp_path / "odd-result-0.json").write_bytes(content)
    session, _ = run(tmp_path, Multiplier("7", 1, always=True))
    assert session.stop is None
    assert "cannot be read" in caplog.text


def test_a_folder_that_cannot_be_written_to_ends_as_without_one(tmp_path, page, caplog):
    (tmp_path / "file").write_text("")
    with Session(rerun=Rerun(folder=tmp_path / "file" / "x")) as session, session.step(3):
        for _ in session.attempts():
            session.check(math.nan, "loss")
    assert session.exit_code == 17
    assert "cannot be kept" in caplog.text


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_is_full_or_read_only_ends_as_without_a_folder(
    tmp_path, page, monkeypatch, caplog, code
):
    def fails(_path, _content, temporary):
        Path(temporary).touch()
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(attempts_module, "replace_file", fails)
    session, _ = run(tmp_path, Multiplier("0", 3, always=True))
    assert (session.stop.reason, session.exit_code) == (StopReason.INVALID, 17)
    assert "no question can wait for another place" in session.stop.text
    assert os.strerror(code) in caplog.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.leaves("threads")
def test_a_disk_that_does_not_answer_ends_as_without_a_folder(
    tmp_path, page, monkeypatch, caplog, go_on
):
    monkeypatch.setattr(attempts_module, "replace_file", lambda *_: go_on.wait(60))
    session, _ = run(tmp_path, Multiplier("0", 3, always=True))
    assert session.exit_code == 17
    assert "cannot be kept" in caplog.text
    assert "no answer within 0.05 s" in caplog.text


@pytest.mark.leaves("threads")
def test_a_question_that_cannot_be_read_in_time_is_left(tmp_path, page, monkeypatch, caplog, go_on):
    monkeypatch.setattr(attempts_module, "read_file", lambda *_: go_on.wait(60) and b"{}")
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: go_on.wait(60))
    session, _ = run(tmp_path, Multiplier("7", 1, always=True))
    assert session.stop is None
    assert "no answer within 0.05 s" in caplog.text


@pytest.fixture
def go_on(monkeypatch):
    """Disks answer once this is set, too late."""
    event = threading.Event()
    monkeypatch.setattr(attempts_module, "_DISK_S", 0.05)
    yield event
    event.set()
    for thread in threading.enumerate():
        if thread.name == "undaunted-deadline":
            thread.join(10)


def test_no_rank_waits_for_another_round_if_one_of_them_cannot(tmp_path, page, monkeypatch):
    saved = []
    with Session(save=saved.append, rerun=Rerun(folder=tmp_path)) as session, session.step(3):
        monkeypatch.setattr(torch_ranks, "any_rank", lambda wishes: [True for _ in wishes])
        for _ in session.attempts():
            session.check(math.nan, "loss")
    assert session.stop.reason is StopReason.INVALID
    assert (saved, list(tmp_path.iterdir())) == ([], [])


def test_ranks_that_cannot_agree_are_told_so(page, monkeypatch, caplog):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with Session(rerun=Rerun()) as session:
        for iteration in range(1, 3):
            with session.step(iteration):
                for _ in session.attempts():
                    session.check(1.0)
            session.should_stop(iteration)
    assert caplog.text.count("there is no process group of torch") == 1


def test_random_generators_of_torch_are_in_the_question(tmp_path, page, monkeypatch):
    torch = pytest.importorskip("torch")
    seen = []

    def compute(weight, number):
        seen.append(torch.rand(1).item())
        return math.nan if number == 3.0 else weight * number

    run(tmp_path, compute)
    monkeypatch.setenv("LOCAL_RANK", "1")
    torch.manual_seed(999)
    run(tmp_path, compute)
    assert seen[2] == seen[3] == seen[4]


def test_a_large_value_is_computed_again_and_used(tmp_path, page, caplog):
    values = iter([*[1.0] * 100, 50.0, 50.0, 2.0])
    with Session(rerun=Rerun(folder=tmp_path)) as session:
        for iteration in range(102):
            with session.step(iteration):
                runs = 0
                for _ in session.attempts():
                    runs += 1
                    session.check(next(values), "loss", spike=10.0)
            assert runs == 1 + (iteration == 100)
            session.should_stop(iteration)
    assert session.stop is None
    assert "loss is unusually large" in caplog.text


def odd_step(session, iteration):
    with session, session.step(iteration):
        for attempt in session.attempts():
            assert attempt == 0
            session.check(math.nan, "loss")


def test_without_rerun_an_odd_result_raises(page):
    with pytest.raises(RuntimeError, match="iteration 5: Unexpected result nan"):
        odd_step(Session(), 5)


def test_an_exception_in_a_step_leaves_nothing_behind(page):
    runs = []
    with Session(rerun=Rerun()) as session:
        for iteration in range(1, 4):
            with contextlib.suppress(ZeroDivisionError), session.step(iteration):
                for _ in session.attempts():
                    runs.append(iteration)
                    session.check(1.0 / (iteration - 2))
            session.should_stop(iteration)
    assert runs == [1, 2, 3]


def test_a_loop_that_is_left_early_leaves_nothing_behind(page):
    with Session(rerun=Rerun()) as session:
        for iteration in range(1, 4):
            runs = 0
            with session.step(iteration):
                for _ in session.attempts():
                    runs += 1
                    break
            assert runs == 1
            session.should_stop(iteration)


# --- a function for programs without a session ---------------------------------------------------


def test_check_alone(caplog):
    check(1.0, "loss")
    with pytest.raises(RuntimeError, match=r"Rank 0, node .+ device cpu:0.*loss is not finite"):
        check(math.inf, "loss")
    check(math.nan, "loss", not_finite=False)
    for _ in range(100):
        check(1.0, "norm", spike=10.0)
    check(11.0, "norm", spike=10.0)
    assert "norm is unusually large" in caplog.text


def test_check_inside_of_a_session_is_the_sessions(page):
    with Session(rerun=Rerun()) as session, session.step(3):
        for attempt in session.attempts():
            check(math.nan if attempt == 0 else 1.0, "loss")
    assert session.exit_code == 17
    assert "transient" in session.stop.text


def test_tensors():
    torch = pytest.importorskip("torch")
    training.check(torch.tensor(1.0))
    with pytest.raises(RuntimeError, match="not finite"):
        training.check(torch.tensor([math.nan]))


def test_outside_of_attempts_a_number_that_is_not_finite_raises():
    with Session(rerun=Rerun()) as session, session.step(50):
        session.check(1.0)
        with pytest.raises(RuntimeError, match=r"iteration 50: .*loss is not finite"):
            session.check(math.nan, "loss")
        for _ in session.attempts():
            session.check(1.0)
        with pytest.raises(RuntimeError, match="loss is not finite"):
            session.check(math.inf, "loss")


def test_attempts_inside_of_attempts_are_refused():
    with Session(rerun=Rerun()) as session, session.step(0):
        for _ in session.attempts():
            with pytest.raises(RuntimeError, match="inside of a loop"):
                next(session.attempts())
        assert list(session.attempts()) == [0]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"mode": "foo"}, "mode is 'foo'.*validate_results"),
        ({"go_on_after": ["foo"]}, "go_on_after is 'foo'.*transient_error"),
        ({"go_on_after": "foo"}, "go_on_after is 'foo'"),
        ({"save_state": dict}, "belong together"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings, named):
    with pytest.raises(ValueError, match=named):
        Rerun(**settings)


def test_one_verdict_may_be_given_as_such():
    assert Rerun(go_on_after="transient_error").go_on_after == ("transient_error",)


def test_a_session_wants_its_settings_as_such():
    with pytest.raises(ValueError, match="rerun is 'questions'"):
        Session(rerun="questions")


@pytest.mark.parametrize("value", [None, "a", [1.0, 2.0], 1j])
def test_what_is_checked_is_a_number(value):
    with pytest.raises(TypeError, match="norm is a"):
        check(value, "norm")


@pytest.mark.parametrize(
    "options",
    [{"spike": 0}, {"spike": "3"}, {"spike": math.nan}, {"tolerance": -1}, {"tolerance": "x"}],
)
def test_limits_of_a_check_are_numbers(options):
    with pytest.raises(ValueError, match="check of norm"):
        check(1.0, "norm", **options)


def test_a_folder_without_a_way_to_save_is_said(tmp_path, caplog):
    Session(rerun=Rerun(folder=tmp_path))
    assert any("save" in line for line in caplog.messages)
