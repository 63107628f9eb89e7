"""``undaunted report`` over real directories."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.simulated_job import simulate, write
from tests.journal import sample
from undaunted.journal import owner
from undaunted.journal.events import EventsLost
from undaunted.journal.lines import encode

CONTENT = b"".join(map(encode, sample.RUN))


def make_run(directory: Path, content: bytes = CONTENT, node: str = "n0") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"journal-{node}.jsonl").write_bytes(content)
    return directory


def test_of_the_journals_of_two_jobs_only_the_newest_counts(tmp_path: Path, command: Any) -> None:
    other = b"".join(
        encode(msgspec.structs.replace(event, wall=event.wall - 500)) for event in sample.RUN
    ).replace(b'"demo"', b'"former"')
    run = make_run(tmp_path / "r")
    make_run(run, other.replace(b'"n0"', b'"n1"'), node="n1")
    out = command("report", run)
    assert "former" in out
    assert "run demo on n0" in out
    assert "run former on" not in out
    job = json.loads(command("report", run, "--json"))["job"]
    assert (job["run_id"], job["nodes"], job["attempts"]) == ("demo", ["n0"], 1)
    assert "former" in job["other_runs"]
    assert job["other_runs"] in job["notes"]
    command("report", run, "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "former" in page
    assert "n1" not in page
    found = json.loads(command("explain", run, "--json"))
    assert found["problems"] == [job["other_runs"]]
    assert {node for one in found["rounds"] for node in one["nodes"]} == {"n0"}


@pytest.mark.parametrize(("lives", "code"), [(True, 3), (False, 1)])
def test_a_job_that_runs_is_told_from_one_whose_launchers_were_killed(
    tmp_path: Path, command: Any, lives: bool, code: int
) -> None:
    opened = owner.this_process(0, "1")
    if not lives:
        opened = msgspec.structs.replace(opened, start_ticks=opened.start_ticks + 1)
    run = make_run(tmp_path / "r", encode(opened) + b"".join(map(encode, sample.RUN[1:-1])))

    assert ("still runs" in command("report", run, "--outcome", code=code)) == lives


@pytest.mark.parametrize("missing", [encode(EventsLost(t=1, count=3, reason="full")), b'{"ev'])
def test_the_end_may_be_among_the_events_that_were_lost(
    tmp_path: Path, command: Any, missing: bytes
) -> None:
    opened = owner.this_process(0, "1")
    gone = msgspec.structs.replace(opened, start_ticks=opened.start_ticks + 1)
    run = make_run(tmp_path / "r", encode(gone) + b"".join(map(encode, sample.RUN[1:-1])) + missing)

    assert "not known" in command("report", run, "--outcome", code=3)


def test_json(tmp_path: Path, command: Any) -> None:
    report = json.loads(command("report", make_run(tmp_path / "r", CONTENT + b"torn"), "--json"))
    assert report["schema"] == 2
    assert report["unreadable_lines"] == 1
    (launch,) = report["launches"]
    assert launch["outcome"] == "finished"
    assert launch["goodput"] == pytest.approx(0.4504, abs=0.0001)
    assert sum(launch["times"].values()) == launch["duration_ns"]
    assert launch["rounds"][0]["times"]["productive_ns"] == 940_000_000
    assert launch["rounds"][0]["last_iteration"] == 27
    assert launch["rounds"][0]["phases"]["stop_ns"] == 40_000_000
    assert launch["rounds"][0]["phases"]["evidence_ns"] is None
    assert launch["rounds"][1]["verdict"]["limit_s"] == 3.0


def test_every_key_of_the_json_is_documented(tmp_path: Path, command: Any) -> None:
    report = json.loads(command("report", make_run(tmp_path / "r"), "--json", "--price", "2"))
    page = (Path(__file__).parents[2] / "docs" / "report.md").read_text()
    launch = report["launches"][0]
    crash = launch["rounds"][0]
    job = report["job"]
    keys = {*report, *launch, *crash, *crash["phases"], *launch["times"]}
    keys |= {*job, *job["rounds"][0], *job["rounds"][0]["parts"][0], *job["clocks"][0]}
    keys |= {*job["failures"], *job["rounds"][0]["failure"], *job["cost"]}
    for key in keys:
        assert f"`{key}`" in page, key


def test_a_job_of_several_nodes_comes_first(tmp_path: Path, command: Any) -> None:
    write(simulate(nodes=2, slots=2, restarts=2, seed=3), tmp_path / "r")
    out = command("report", tmp_path / "r", "--price", "100 EUR", "--times")
    assert re.match(r"job simulated: finished, exit code 0, down .*, goodput .*\nwhy: ", out)
    assert "train.py (4 ranks, 2 nodes)" in out
    assert "failures: 2, one in" in out
    assert re.search(r"cost: +[\d.]+ EUR, ", out)
    assert "clocks:   2 machines, related by the order of events" in out
    assert re.search(r"^productive +\d+ h .* % +[\d.]+ ", out, re.MULTILINE)
    assert out.index("job simulated") < out.index("run simulated on node000")


def test_of_many_launches_one_can_be_seen(tmp_path: Path, command: Any) -> None:
    write(simulate(nodes=9, slots=1, restarts=25, seed=3), tmp_path / "r")
    out = command("report", tmp_path / "r")
    few = len(re.findall("^round ", out, re.MULTILINE))
    everything = command("report", tmp_path / "r", "--all")
    assert few < len(re.findall("^round ", everything, re.MULTILINE)) == 26
    assert "launches on 9 nodes; one in full: --node NAME" in out
    assert "run simulated" not in out
    assert command("report", tmp_path / "r", "--node", "node003").startswith(
        "run simulated on node003: "
    )
    assert "there is no journal of node 'node3'; nodes: node000, " in command(
        "report", tmp_path / "r", "--node", "node3", code=2
    )


def test_a_page(tmp_path: Path, command: Any) -> None:
    run = make_run(tmp_path / "r")
    file = tmp_path / "page.html"
    assert command("report", run, "--html", file) == f"written: {file}\n"
    assert "<html" in file.read_text()
    assert "conclusion: " in file.read_text()
    assert "page.html/p: " in command("report", run, "--html", tmp_path / "page.html" / "p", code=2)


def test_a_trace(tmp_path: Path, command: Any) -> None:
    run, file = make_run(tmp_path / "r"), tmp_path / "trace.json"
    assert command("report", run, "--trace", file) == f"written: {file}\n"
    assert json.loads(file.read_text())["traceEvents"]
    assert "trace.json/t: " in command("report", run, "--trace", file / "t", code=2)
    assert "exclude" in command("report", run, "--trace", file, "--json", code=2)


def test_a_page_into_a_pipe_is_all_that_is_printed(tmp_path: Path, command: Any) -> None:
    run, pipe = make_run(tmp_path / "r"), tmp_path / "pipe"
    os.mkfifo(pipe)
    with os.fdopen(os.open(pipe, os.O_RDWR | os.O_NONBLOCK), "rb") as reader:
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 1 << 20)
        assert command("report", run, "--html", pipe) == ""
        assert os.read(reader.fileno(), 15) == b"<!doctype html>"


def test_the_newest_run_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(("new", "old")):
        run = make_run(tmp_path / "undaunted-runs" / name, CONTENT.replace(b"demo", name.encode()))
        os.utime(run / "journal-n0.jsonl", (1000 - age, 1000 - age))
    (tmp_path / "undaunted-runs" / "latest").symlink_to("old")
    (tmp_path / "undaunted-runs" / "empty").mkdir()
    assert "run new" in command("report")


def test_runs_that_are_near_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "undaunted-runs" / "one")
    (tmp_path / "empty").mkdir()
    for named in ("undaunted-runs", "empty"):
        assert "undaunted-runs/one" in command("report", named, code=2)


CODE = "import sys; from undaunted.cli.report import main; sys.exit(main(sys.argv[1:]))"


def environment(**extra: str) -> dict[str, str]:
    source = Path(__file__).parents[2] / "src"
    return {**os.environ, "PYTHONPATH": str(source), "TERM": "xterm", **extra}


def test_a_reader_that_stops_reading_is_no_error(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r")
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-c", CODE, str(run), "--times"],
            stdout=write,
            stderr=subprocess.PIPE,
            env=environment(),
            timeout=60,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_plain_output_needs_neither_rich_nor_torch_nor_unicode(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", CONTENT.replace(b"bad batch", b"b\xc3\xa4d \xe2\x9c\x93"))
    block = "import sys; sys.modules['rich'] = sys.modules['torch'] = None; " + CODE
    done = subprocess.run(
        [sys.executable, "-c", block, str(run)],
        capture_output=True,
        env=environment(PYTHONIOENCODING="latin-1"),
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "bäd \\u2713".encode("latin-1") in done.stdout


def test_json_is_utf8_whatever_the_locale_says(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", CONTENT.replace(b"bad batch", b"b\xc3\xa4d \xe2\x9c\x93"))
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(run), "--json"],
        capture_output=True,
        env=environment(PYTHONIOENCODING="latin-1"),
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert (
        "b\u00e4d \u2713" in json.loads(done.stdout.decode())["launches"][0]["rounds"][0]["cause"]
    )


def test_a_terminal_gets_colours_and_its_width(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r")
    master, slave = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", CODE, str(run), "--times"],
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=slave,
        env=environment(COLUMNS="40"),
    ) as process:
        os.close(slave)
        shown = b""
        try:
            while chunk := os.read(master, 1 << 16):
                shown += chunk
        except OSError:
            pass  # the other end of a terminal was closed
        finally:
            os.close(master)
        assert process.wait(60) == 0, shown
    assert b"\x1b[" in shown
    assert b"round 1: detect 0.2" in shown


def test_a_full_disk_behind_standard_output_is_said(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "undaunted.cli.main", "report", str(make_run(tmp_path / "r"))]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2
    assert done.stderr == b"undaunted report: error: standard output: No space left on device\n"


def test_metrics_for_prometheus(
    tmp_path: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("prometheus_client")
    run = make_run(tmp_path / "r")
    shown = command("report", run, "--prometheus")
    assert 'undaunted_round{node="n0",run_id="demo"} 2.0' in shown
    assert "undaunted_job_restarts_total 2.0" in shown
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert "pip install 'undaunted[metrics]'" in command("report", run, "--prometheus", code=2)
