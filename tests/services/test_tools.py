"""What assistants are told of runs and logs, and what they are not let see."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from tests.cli.test_flight import make
from tests.coordinator.wire.talk import on_loop
from tests.journal import sample
from undaunted.base import landlock
from undaunted.base.roots import Roots
from undaunted.journal.events import JobStarted
from undaunted.journal.lines import encode
from undaunted.services import tools as module
from undaunted.services.analysts import Analyst
from undaunted.services.tools import ToolError, Tools

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

FAILED = "0: iteration 5 | loss 3\n0: torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB\n"


def journal(log_dir: str) -> bytes:
    """Return a journal whose logs are there."""
    events = (
        replace(event, log_dir=log_dir) if isinstance(event, JobStarted) else event
        for event in sample.RUN
    )
    return b"".join(map(encode, events))


class Place:
    """Tools over a folder of runs, and a secret beside it."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "runs"
        self.run = self.root / "a"
        self.run.mkdir(parents=True)
        (self.run / "journal-n0.jsonl").write_bytes(journal(log_dir=""))
        (self.run / "a.log").write_text(FAILED)
        self.outside = directory / "outside"
        self.outside.mkdir()
        (self.outside / "journal-n0.jsonl").write_bytes(journal(log_dir=""))
        (self.outside / "secret").write_text("secret")
        roots = Roots([self.root])
        self.tools = Tools(roots, Analyst(roots, 60.0))


def over(test: Callable[[Place], Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test over a place; what reads logs is ended."""

    @functools.wraps(test)
    async def run(tmp_path: Path) -> None:
        place = Place(tmp_path)
        try:
            await test(place)
        finally:
            await place.tools.close()

    del run.__wrapped__  # type: ignore[attr-defined]
    return on_loop(run)


@over
async def test_runs_are_listed_the_newest_first(place: Place) -> None:
    other = place.root / "team" / "b"
    other.mkdir(parents=True)
    (other / "journal-n0.jsonl").touch()
    os.utime(other / "journal-n0.jsonl", (1, 1))
    (place.root / "away").symlink_to(place.outside)
    runs = await place.tools.list_runs()
    assert [run["run"] for run in runs] == [str(place.run), str(other)]
    assert runs[1]["written_t"] == 1
    assert await place.tools.list_runs(str(place.root / "team")) == runs[1:]
    for folder in (str(place.outside), f"{place.root}/../outside", "runs"):
        with pytest.raises(ToolError, match="is not below"):
            await place.tools.list_runs(folder)


@pytest.mark.e2e
@over
async def test_a_run_is_explained(place: Place) -> None:
    page = await place.tools.explain_failure(str(place.run))
    assert page["schema"] == 1
    assert page["rounds"]
    advice = await place.tools.advice(str(place.run))
    assert advice["conclusion"] == page["conclusion"]
    assert [one["action"] for one in advice["rounds"]] == [
        one["advice"]["action"] for one in page["rounds"]
    ]
    assert "exit code 0" in await place.tools.timeline(str(place.run))


@over
async def test_stacks_of_the_last_round_or_of_one(place: Place) -> None:
    with pytest.raises(ToolError, match="stacks are kept when a limit is passed"):
        await place.tools.stacks(str(place.run))
    for number in range(2):
        file = place.run / f"stacks-round{number}.txt"
        file.write_text(f"round {number}" + "x" * 100_000)
        os.utime(file, (number, number))
    assert (await place.tools.stacks(str(place.run))).startswith("round 1")
    shown = await place.tools.stacks(str(place.run), 0)
    assert shown.startswith("round 0")
    assert len(shown) == 64 << 10
    (place.run / "stacks-round7.txt").symlink_to(place.outside / "secret")
    with pytest.raises(ToolError, match="outside_root"):
        await place.tools.stacks(str(place.run), 7)


@over
async def test_stacks_of_a_round_of_several_nodes(place: Place) -> None:
    written = [  # in this order
        *(("0-n1", "n1 at its limit"), ("0-n2", "n2 at its limit"), ("0-n1-early", "too early")),
        *(("10-n1", "another round"), ("1-n2-early", "n2 is silent"), ("1-n3-early", "n3, too")),
    ]
    for t, (name, text) in enumerate(written):
        file = place.run / f"stacks-round{name}.txt"
        file.write_text(text)
        os.utime(file, (t, t))

    both = await place.tools.stacks(str(place.run), 0)
    assert [line for line in both.splitlines() if line] == [
        *("## stacks-round0-n1.txt", "n1 at its limit", "## stacks-round0-n2.txt"),
        "n2 at its limit",
    ]
    early = await place.tools.stacks(str(place.run))
    assert "n2 is silent" in early
    assert "n3, too" in early
    assert "another round" not in early
    for name in ("0-n1", "0-n2"):
        (place.run / f"stacks-round{name}.txt").write_text("x" * 100_000)
    long = await place.tools.stacks(str(place.run))
    assert len(long) == 64 << 10
    assert "## stacks-round0-n2.txt" in long


@over
async def test_nothing_outside_is_read(place: Place) -> None:
    tools = place.tools
    (place.root / "way").symlink_to(place.outside)
    for path in (
        *(place.outside, place.root / "way", place.root / ".." / "outside", "/proc/self", "runs"),
        place.outside / "secret",
    ):
        for tool in (tools.explain_failure, tools.advice, tools.timeline, tools.fr_analyzer):
            with pytest.raises(ToolError, match=r"not below|outside_root|invalid_path"):
                await tool(str(path))
    for tool in (tools.log_analyzer, tools.fr_analyzer):
        with pytest.raises(ToolError, match="outside_root"):
            await tool(str(place.root / "way" / "secret"))


@over
async def test_what_is_no_path_is_refused_in_words(place: Place) -> None:
    tools = place.tools
    for path in (f"{place.run}\0", f"{place.root}/{'a' * 5000}", f"{place.root}/\udcff"):
        for tool in (tools.list_runs, tools.explain_failure, tools.stacks, tools.log_analyzer):
            with pytest.raises(ToolError):
                await tool(path)


@over
async def test_a_run_in_which_something_leads_outside_is_not_read(place: Place) -> None:
    link = place.run / "attempt_0"
    link.symlink_to(place.outside)
    with pytest.raises(ToolError, match="attempt_0 leads outside of what may be read"):
        await place.tools.explain_failure(str(place.run))
    link.unlink()
    (place.run / "journal-n0.jsonl").write_bytes(journal(log_dir=str(place.outside)))
    with pytest.raises(ToolError, match="outside, which may not be read; --allowed-root"):
        await place.tools.explain_failure(str(place.run))


@pytest.mark.skipif(not landlock.is_there(), reason="this kernel has no Landlock")
@pytest.mark.e2e
def test_what_leads_outside_after_the_look_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @over
    async def test(place: Place) -> None:
        secret = place.outside / "secret.log"
        secret.write_text(FAILED)
        folder = place.root / "logs"
        folder.mkdir()
        log = folder / "a.log"
        log.write_text(FAILED)
        looked = place.tools._checked

        def change(path: str) -> Path:
            real = looked(path)
            log.unlink()
            log.symlink_to(secret)
            return real

        assert "gpu_out_of_memory" in str(await place.tools.explain_failure(str(folder)))
        monkeypatch.setattr(place.tools, "_checked", change)
        with pytest.raises(ToolError, match="holds no journal, no logs"):
            await place.tools.explain_failure(str(folder))
        log.unlink()
        log.write_text(FAILED)
        with pytest.raises(ToolError, match=r"nothing in .*a\.log can be read|holds no journal"):
            await place.tools.explain_failure(str(log))

    test(tmp_path)


@pytest.mark.e2e
@over
async def test_logs_and_dumps_are_analysed_and_kept(place: Place) -> None:
    dumps = place.root / "dumps"
    make(dumps)
    log = await place.tools.log_analyzer(str(place.run / "a.log"))
    assert (log["module"], log["result_id"]) == ("log_analyzer", "1")
    assert log["recommendation"]["action"] == "RESTART"
    assert "gpu_out_of_memory" in log["result"]
    assert log["findings"][0]["cause"] == "gpu_out_of_memory"
    found = await place.tools.fr_analyzer(str(dumps))
    assert found["hanging_ranks"] == [2]
    both = await place.tools.log_fr_analyzer(str(place.run / "a.log"), str(dumps))
    assert both["log"]["findings"] == log["findings"]
    assert both["fr"]["hanging_ranks"] == [2]
    assert await place.tools.get_result("log_analyzer", "1") == log
    with pytest.raises(ToolError, match="there are: log_analyzer/1, fr_analyzer/2"):
        await place.tools.get_result("log_analyzer", "7")
    status = await place.tools.status()
    assert [one["result_id"] for one in status["results"]] == ["1", "2", "3"]
    assert json.loads(json.dumps(both))["fr"] == both["fr"]


@over
async def test_questions_that_come_together_get_each_its_own_answer(place: Place) -> None:
    logs = [place.root / f"{number}.log" for number in range(6)]
    for log in logs:
        log.write_text(f"0: RuntimeError: of {log.name}\n")
    answers = await asyncio.gather(*(place.tools.log_analyzer(str(log)) for log in logs))
    quotes = [answer["findings"][0]["quote"] for answer in answers]
    assert quotes == [f"0: RuntimeError: of {log.name}" for log in logs]


@over
async def test_results_are_bounded(place: Place) -> None:
    for _ in range(150):
        place.tools._keep("log_analyzer", {})
    status = await place.tools.status()
    assert [one["result_id"] for one in status["results"]] == [str(n) for n in range(51, 151)]


@pytest.mark.e2e
@over
async def test_a_command_that_fails_or_takes_too_long_is_said(place: Place) -> None:
    (place.root / "empty").mkdir()
    with pytest.raises(ToolError, match="holds no journal"):
        await place.tools.explain_failure(str(place.root / "empty"))
    with pytest.raises(ToolError, match="not_found"):
        await place.tools.explain_failure(str(place.root / "gone"))


@pytest.mark.parametrize(
    ("bound", "message"), [("LIMIT_S", "takes longer than 0 s"), ("_LONGEST", "says more than")]
)
def test_answers_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, message: str
) -> None:
    @over
    async def test(place: Place) -> None:
        monkeypatch.setattr(module, bound, 0)
        with pytest.raises(ToolError, match=message):
            await place.tools.explain_failure(str(place.run))

    test(tmp_path)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("ends", [True, False])
def test_a_command_that_says_too_much_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: str, ends: bool
) -> None:
    """It fills pipes that nobody has to read to their end, and may go on for ever."""
    code = f"import sys\nfor _ in range(3): sys.{stream}.write('x' * 1_000_000)\n"
    code += "" if ends else "import time; time.sleep(600)"
    command = [sys.executable, "-c", code]
    monkeypatch.setattr(module, "confined", lambda _folders, _words: command)
    monkeypatch.setattr(module, "LIMIT_S", 60.0 if ends else 1.0)

    @over
    async def test(place: Place) -> None:
        if ends and stream == "stderr":
            assert await place.tools.timeline(str(place.run)) == ""
        else:
            with pytest.raises(ToolError, match="says more than" if ends else "takes longer"):
                await place.tools.timeline(str(place.run))

    test(tmp_path)


def test_a_disk_that_hangs_holds_up_no_other_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = threading.Event()

    @over
    async def test(place: Place) -> None:
        monkeypatch.setattr(module, "_LOOK_S", 0.05)
        monkeypatch.setattr(place.tools, "_folder", lambda _: hangs.wait(60.0))
        for tool in (place.tools.list_runs, place.tools.stacks, place.tools.timeline):
            with pytest.raises(ToolError, match="does not answer"):
                await tool(str(place.run))

    try:
        test(tmp_path)
    finally:
        hangs.set()


def test_folders_with_too_much_in_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @over
    async def test(place: Place) -> None:
        monkeypatch.setattr(module, "_MOST_ENTRIES", 1)
        with pytest.raises(ToolError, match="name one run"):
            await place.tools.explain_failure(str(place.run))

    test(tmp_path)
