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

import msgspec
import pytest

from benchmarks.simulated_job import simulate, write
from tests.journal import sample
from undaunted.cli.explain import main as explain
from undaunted.cli.report import main
from undaunted.journal import owner
from undaunted.journal.events import EventsLost
from undaunted.journal.lines import encode

CONTENT = b"".join(map(encode, sample.RUN))


def make_run(directory: Path, content: bytes = CONTENT, node: str = "n0") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"journal-{node}.jsonl").write_bytes(content)
    return directory


def test_report_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(make_run(tmp_path / "r"))]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("run demo on n0: finished")
    assert "rank 1 raised ValueError: bad batch" in out
    assert err == ""


def test_a_journal_may_be_named_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(make_run(tmp_path / "r") / "journal-n0.jsonl")]) == 0
    assert "run demo" in capsys.readouterr().out


def test_several_nodes_and_launches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = CONTENT.replace(b'"pid":42', b'"pid":43')
    make_run(tmp_path / "r", CONTENT + again)
    make_run(tmp_path / "r", CONTENT.replace(b'"n0"', b'"n1"'), node="n1")
    assert main([str(tmp_path / "r")]) == 0
    out = capsys.readouterr().out
    assert out.count("run demo on n0") == 2
    assert out.count("run demo on n1") == 1


def test_of_the_journals_of_two_jobs_only_the_newest_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = b"".join(
        encode(msgspec.structs.replace(event, wall=event.wall - 500)) for event in sample.RUN
    ).replace(b'"demo"', b'"former"')
    run = make_run(tmp_path / "r")
    make_run(run, other.replace(b'"n0"', b'"n1"'), node="n1")
    assert main([str(run)]) == 0
    out = capsys.readouterr().out
    assert "former" in out
    assert "run demo on n0" in out
    assert "run former on" not in out
    assert main([str(run), "--json"]) == 0
    job = json.loads(capsys.readouterr().out)["job"]
    assert (job["run_id"], job["nodes"], job["attempts"]) == ("demo", ["n0"], 1)
    assert "former" in job["other_runs"]
    assert job["other_runs"] in job["notes"]
    assert main([str(run), "--html", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "former" in page
    assert "n1" not in page
    capsys.readouterr()
    assert explain([str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == [job["other_runs"]]
    assert {node for one in found["rounds"] for node in one["nodes"]} == {"n0"}


def test_the_outcome_of_the_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "r")
    lost = b"".join(map(encode, sample.RUN[:-1])).replace(b'"n0"', b'"n1"')
    make_run(run, lost, node="n1")
    assert main([str(run), "--outcome"]) == 0
    assert capsys.readouterr().out.startswith("finished (exit code 0): ")


def test_no_outcome_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "r", b"".join(map(encode, sample.RUN[:-1])))
    assert main([str(run), "--outcome"]) == 3
    assert "on other machines" in capsys.readouterr().out


@pytest.mark.parametrize(("lives", "code"), [(True, 3), (False, 1)])
def test_a_job_that_runs_is_told_from_one_whose_launchers_were_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lives: bool, code: int
) -> None:
    opened = owner.this_process(0, "1")
    if not lives:
        opened = msgspec.structs.replace(opened, start_ticks=opened.start_ticks + 1)
    run = make_run(tmp_path / "r", encode(opened) + b"".join(map(encode, sample.RUN[1:-1])))

    assert main([str(run), "--outcome"]) == code
    assert ("still runs" in capsys.readouterr().out) == lives


@pytest.mark.parametrize("missing", [encode(EventsLost(t=1, count=3, reason="full")), b'{"ev'])
def test_the_end_may_be_among_the_events_that_were_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], missing: bytes
) -> None:
    opened = owner.this_process(0, "1")
    gone = msgspec.structs.replace(opened, start_ticks=opened.start_ticks + 1)
    run = make_run(tmp_path / "r", encode(gone) + b"".join(map(encode, sample.RUN[1:-1])) + missing)

    assert main([str(run), "--outcome"]) == 3
    assert "not known" in capsys.readouterr().out


def test_events_that_are_missing_are_told_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = EventsLost(t=1, count=145, reason="No space left on device")
    run = make_run(tmp_path / "r", CONTENT + encode(lost))

    assert main([str(run)]) == 0

    first = capsys.readouterr().out.splitlines()[0]
    assert "145 events could not be written (No space left on device)" in first


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(make_run(tmp_path / "r", CONTENT + b"torn")), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
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


def test_every_key_of_the_json_is_documented(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(make_run(tmp_path / "r")), "--json", "--price", "2"])
    report = json.loads(capsys.readouterr().out)
    page = (Path(__file__).parents[2] / "docs" / "report.md").read_text()
    launch = report["launches"][0]
    crash = launch["rounds"][0]
    job = report["job"]
    keys = {*report, *launch, *crash, *crash["phases"], *launch["times"]}
    keys |= {*job, *job["rounds"][0], *job["rounds"][0]["parts"][0], *job["clocks"][0]}
    keys |= {*job["failures"], *job["rounds"][0]["failure"], *job["cost"]}
    for key in keys:
        assert f"`{key}`" in page, key


def test_a_job_of_several_nodes_comes_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(simulate(nodes=2, slots=2, restarts=2, seed=3), tmp_path / "r")
    assert main([str(tmp_path / "r"), "--price", "100 EUR", "--times"]) == 0
    out = capsys.readouterr().out
    assert re.match(r"job simulated: finished, exit code 0, down .*, goodput .*\nwhy: ", out)
    assert "train.py (4 ranks, 2 nodes)" in out
    assert "failures: 2, one in" in out
    assert re.search(r"cost: +[\d.]+ EUR, ", out)
    assert "clocks:   2 machines, related by the order of events" in out
    assert re.search(r"^productive +\d+ h .* % +[\d.]+ ", out, re.MULTILINE)
    assert out.index("job simulated") < out.index("run simulated on node000")


def test_a_price_is_in_the_report_of_one_launch_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "r")
    assert main([str(run)]) == 0
    assert "cost: " not in capsys.readouterr().out
    assert main([str(run), "--price", "2.5EUR"]) == 0
    out = capsys.readouterr().out
    assert (
        len(re.findall(r"^cost: +[\d.]+ EUR, [\d.]+ EUR of it productive", out, re.MULTILINE)) == 1
    )


@pytest.mark.parametrize("option", ["--html", "--trace"])
def test_a_directory_that_does_not_exist_is_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    run = make_run(tmp_path / "r")
    assert main([str(run), option, str(tmp_path / "none" / "x")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_of_many_launches_one_can_be_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(simulate(nodes=9, slots=1, restarts=25, seed=3), tmp_path / "r")
    assert main([str(tmp_path / "r")]) == 0
    out = capsys.readouterr().out
    shown = len(re.findall("^round ", out, re.MULTILINE))
    assert main([str(tmp_path / "r"), "--all"]) == 0
    everything = capsys.readouterr().out
    assert shown < len(re.findall("^round ", everything, re.MULTILINE)) == 26
    assert "launches on 9 nodes; one in full: --node NAME" in out
    assert "run simulated" not in out
    assert main([str(tmp_path / "r"), "--node", "node003"]) == 0
    assert capsys.readouterr().out.startswith("run simulated on node003: ")
    assert main([str(tmp_path / "r"), "--node", "node3"]) == 2
    assert "there is no journal of node 'node3'; nodes: node000, " in capsys.readouterr().err


def test_a_price_that_is_none_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--price", "much"]) == 2
    assert "'much' is no price of one rank for an hour; write a number" in capsys.readouterr().err


def test_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "r")
    assert main([str(run), "--html", str(tmp_path / "page.html")]) == 0
    assert "<html" in (tmp_path / "page.html").read_text()
    assert "conclusion: " in (tmp_path / "page.html").read_text()
    assert capsys.readouterr().out == f"written: {tmp_path / 'page.html'}\n"
    assert main([str(run), "--html", str(tmp_path / "page.html" / "p")]) == 2
    assert "page.html/p: " in capsys.readouterr().err


def test_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, file = make_run(tmp_path / "r"), tmp_path / "trace.json"
    assert main([str(run), "--trace", str(file)]) == 0
    assert capsys.readouterr().out == f"written: {file}\n"
    assert json.loads(file.read_text())["traceEvents"]
    assert main([str(run), "--trace", str(file / "t")]) == 2
    assert "trace.json/t: " in capsys.readouterr().err
    assert main([str(run), "--trace", str(file), "--json"]) == 2
    assert "exclude" in capsys.readouterr().err


def test_a_page_into_a_pipe_is_all_that_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, pipe = make_run(tmp_path / "r"), tmp_path / "pipe"
    os.mkfifo(pipe)
    with os.fdopen(os.open(pipe, os.O_RDWR | os.O_NONBLOCK), "rb") as reader:
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 1 << 20)
        assert main([str(run), "--html", str(pipe)]) == 0
        assert os.read(reader.fileno(), 15) == b"<!doctype html>"
    assert capsys.readouterr().out == ""


def test_the_check_has_moved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(make_run(tmp_path / "r")), "--check"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "python -m simulator --check" in err


def test_one_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(make_run(tmp_path / "r"))
    assert main([run, "--round", "1"]) == 0
    assert "waiting for it: rank 1" in capsys.readouterr().out
    assert main([run, "--round", "9"]) == 2
    assert "there is no round 9; the journal has rounds 0 to 2" in capsys.readouterr().err


def test_one_round_of_several_nodes_says_whose_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "r")
    make_run(run, CONTENT.replace(b'"n0"', b'"n1"'), node="n1")
    assert main([str(run), "--round", "1"]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line.startswith("run")] == [
        "run demo on n0, started 1970-01-01 00:16:40 UTC",
        "run demo on n1, started 1970-01-01 00:16:40 UTC",
    ]
    assert main([str(run), "--round", "1", "--node", "n1"]) == 0
    assert "run demo" not in capsys.readouterr().out


def test_one_journal_of_several_nodes_says_what_it_does_not_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = CONTENT.replace(b'"world_size":2', b'"world_size":4')
    assert main([str(make_run(tmp_path / "r", content))]) == 0
    assert "note: no journal has ranks 2-3 in 3 rounds (0 to 2)" in capsys.readouterr().out


def test_the_newest_run_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(("new", "old")):
        run = make_run(tmp_path / "undaunted-runs" / name, CONTENT.replace(b"demo", name.encode()))
        os.utime(run / "journal-n0.jsonl", (1000 - age, 1000 - age))
    (tmp_path / "undaunted-runs" / "latest").symlink_to("old")
    (tmp_path / "undaunted-runs" / "empty").mkdir()
    assert main([]) == 0
    assert "run new" in capsys.readouterr().out


def test_nothing_to_report_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "undaunted-runs" / "empty").mkdir(parents=True)
    (tmp_path / "train.py").write_text("import torch\n")
    for arguments, message in (
        ([], "no run under ./undaunted-runs; name the directory"),
        (["missing"], "missing does not exist"),
        (["undaunted-runs"], "undaunted-runs holds no journal"),
        (["train.py"], "train.py is no journal; name the directory of a run"),
        ([str(make_run(tmp_path / "blank", b""))], "holds no event that can be read"),
        ([str(make_run(tmp_path / "junk", b"junk\n"))], "holds no event that can be read"),
    ):
        assert main(arguments) == 2
        out, err = capsys.readouterr()
        assert message in err
        assert out == ""


def test_runs_that_are_near_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "undaunted-runs" / "one")
    (tmp_path / "empty").mkdir()
    for named in ("undaunted-runs", "empty"):
        assert main([named]) == 2
        assert "undaunted-runs/one" in capsys.readouterr().err


def test_the_version_has_one_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 2
    assert "`undaunted --version`" in capsys.readouterr().err


def test_damage_is_told_and_the_rest_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = b"junk\n" + CONTENT + b'{"event":"teleported","t":1}\n' + b'{"event":"jo'
    assert main([str(make_run(tmp_path / "r", content))]) == 0
    out = capsys.readouterr().out
    assert "2 lines could not be read, first line 1" in out
    assert "skipped: 1 event of a newer version" in out
    assert "run demo on n0: finished" in out


def test_a_bad_option_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--colour"]) == 2
    assert "--colour" in capsys.readouterr().err


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
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("prometheus_client")
    run = make_run(tmp_path / "r")
    assert main([str(run), "--prometheus"]) == 0
    shown = capsys.readouterr().out
    assert 'undaunted_round{node="n0",run_id="demo"} 2.0' in shown
    assert "undaunted_job_restarts_total 2.0" in shown
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert main([str(run), "--prometheus"]) == 2
    assert "pip install 'undaunted[metrics]'" in capsys.readouterr().err
