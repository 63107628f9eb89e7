"""``undaunted explain`` over real directories."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.attribution.flight.dumps import job
from tests.journal import sample
from undaunted.cli.explain import main
from undaunted.journal.events import JobEnded, JobStarted, RoundStopped, SlowRank
from undaunted.journal.lines import encode
from undaunted.journal.owner import this_process

XID = "Nov 22 10:10:05 node-2 kernel: NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


def make_run(directory: Path, *, log_dir: str = "", events: object = sample.RUN) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    lines = []
    for event in events:  # type: ignore[attr-defined]
        line = encode(event)
        if isinstance(event, JobStarted):
            line = line.replace(b"/logs", log_dir.encode())
        lines.append(line)
    (directory / "journal-n0.jsonl").write_bytes(b"".join(lines))
    return directory


def make_log(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def explained(command: Any) -> Any:
    """Run `undaunted explain --json`; return the document."""
    return lambda path: json.loads(command("explain", path, "--json"))


def test_logs_of_the_ranks_say_why(tmp_path: Path, explained: Any) -> None:
    """The directory was copied: its logs are found beside the journal."""
    run = make_run(tmp_path / "run", log_dir="/gone/logs")
    text = f"Traceback (most recent call last):\n{OUT_OF_MEMORY}\n"
    log = make_log(run, "logs/attempt_0/1/stderr.log", text)

    found = explained(run)
    first = found["rounds"][0]["findings"][0]
    assert (first["cause"], first["ranks"], first["nodes"]) == ("gpu_out_of_memory", [1], ["n0"])
    assert first["source"] == f"{log}:2"
    assert first["quote"] == OUT_OF_MEMORY
    assert any(str(log) in text for text in found["rounds"][0]["look"])
    assert found["rounds"][0]["unknown"] == []
    assert "nothing is in their logs" in found["rounds"][1]["unknown"][0]


@pytest.mark.parametrize("name", ["kernel-round1.log", "kernel-round1-n0.log"])
def test_what_the_kernel_logged_in_a_round_says_why(
    tmp_path: Path, explained: Any, name: str
) -> None:
    run = make_run(tmp_path / "run")
    line = XID.replace("Nov 22 10:10:05 node-2", "1970-01-01 00:16:46.000001Z")
    log = make_log(run, name, f"{line}\n")

    first, second = explained(run)["rounds"]
    finding = second["findings"][0]
    assert (finding["cause"], finding["nodes"]) == ("gpu_lost", ["n0"])
    assert finding["source"] == f"{log}:1"
    assert any(str(log) in text for text in second["look"])
    assert "gpu_lost" not in [each["cause"] for each in first["findings"]]


def test_a_log_of_all_ranks_of_a_round(tmp_path: Path, explained: Any) -> None:
    log_dir = tmp_path / "logs"
    text = f"0: hello\n1: Traceback (most recent call last):\n1: {OUT_OF_MEMORY}\n"
    log = make_log(log_dir, "train_cycle0.log", text)
    found = explained(make_run(tmp_path / "run", log_dir=str(log_dir)))
    first = found["rounds"][0]["findings"][0]
    assert (first["cause"], first["source"]) == ("gpu_out_of_memory", f"{log}:3")
    assert found["rounds"][0]["unknown"] == []


def test_logs_that_are_gone_are_named(tmp_path: Path, explained: Any) -> None:
    found = explained(make_run(tmp_path / "run", log_dir="/gone/logs"))
    assert "/gone/logs" in found["rounds"][0]["unknown"][0]


def make_dumps(directory: Path, at: float) -> None:
    """Write dumps of two ranks, of which rank 1 has not come, with calls at a second since 1970."""
    directory.mkdir(exist_ok=True)
    waits, late = job(2)
    waits.call("0", state="scheduled")
    for one in (waits, late):
        for entry in one.entries:
            entry["time_created_ns"] = round(at * 1e9) + entry["record_id"]
        one.write(directory).rename(directory / f"dump_at_{at}_rank_{one.rank}")


def test_dumps_are_of_the_round_in_which_their_calls_were(tmp_path: Path, explained: Any) -> None:
    run = make_run(tmp_path / "run")
    make_dumps(run, 1000.5)
    make_dumps(run, 900)  # of an earlier run in the same directory
    found = explained(run)
    assert "host_lag" in {one["cause"] for one in found["rounds"][0]["findings"]}
    assert any("undaunted flight" in text for text in found["rounds"][0]["look"])
    assert not any("undaunted flight" in text for text in found["rounds"][1]["look"])
    assert any("which collectives" in text for text in found["rounds"][1]["unknown"])


def test_dumps_of_an_earlier_run_are_of_no_round(tmp_path: Path, explained: Any) -> None:
    run = make_run(tmp_path / "run")
    make_dumps(run, 900)
    found = explained(run)
    assert not any("undaunted flight" in text for one in found["rounds"] for text in one["look"])


def test_dumps_in_the_run_of_its_last_hang(tmp_path: Path, explained: Any) -> None:
    run = make_run(tmp_path / "run")
    make_dumps(run, 1004)
    found = explained(run)
    assert next(one["cause"] for one in found["rounds"][1]["findings"]) == "host_lag"
    assert any("undaunted flight" in text for text in found["rounds"][1]["look"])
    assert not any("undaunted flight" in text for text in found["rounds"][0]["look"])


def test_the_conclusion_is_of_the_last_failure(tmp_path: Path, explained: Any) -> None:
    conclusion = explained(make_run(tmp_path / "run"))["conclusion"]
    assert (conclusion["cause"], conclusion["ranks"], conclusion["nodes"]) == (
        "host_lag",
        [0],
        ["n0"],
    )
    assert conclusion["action"] == "restart"


@pytest.mark.parametrize(("reached", "action"), [(90, "restart"), (20, "stop")])
def test_progress_of_a_round_that_was_ended_without_a_failure_counts(
    tmp_path: Path, explained: Any, reached: int, action: str
) -> None:
    """A node was preempted, say: what failed before it and after it is not without progress."""
    events = [*sample.OPENING]
    for number in range(4):
        ended = sample.CRASH
        if number == 2:
            ended = [sample.reached(1041, 0, reached, 985), sample.at(1042, RoundStopped, 0)]
        events += sample.begin(10 + 2000 * number, number)
        events += [
            msgspec.structs.replace(event, round=number, t=event.t + 2000 * number * sample.MS)
            for event in ended
        ]
    found = explained(make_run(tmp_path / "run", events=events))
    assert [one["name"] for one in found["rounds"]] == ["round 0", "round 1", "round 3"]
    assert found["conclusion"]["action"] == action


@pytest.mark.parametrize(
    ("reached", "reason", "action"),
    [
        ((50, 40), "the launcher on node n0 received SIGTERM", "stop"),
        ((50, 60), "the launcher on node n0 received SIGTERM", "restart"),
        ((50, 40), "the launcher on node n0 received SIGINT", "restart"),
    ],
)
def test_a_job_whose_last_start_came_no_further_is_not_to_be_started_again_as_it_is(
    tmp_path: Path,
    explained: Any,
    reached: tuple[int, int],
    reason: str,
    action: str,
) -> None:
    """`undaunted srun` does not queue it again."""
    events: list[Any] = []
    for start, iteration in enumerate(reached):
        came = [
            *sample.OPENING,
            *sample.begin(10, 0),
            sample.reached(1041, 0, iteration, 985),
            sample.at(1042, RoundStopped, 0),
            sample.at(1043, JobEnded, 0, outcome="preempted", exit_code=75, reason=reason),
        ]
        # Another process, later.
        came[0] = msgspec.structs.replace(came[0], pid=42 + start)
        later = 10_000 * start
        events += [
            msgspec.structs.replace(one, t=one.t + later * sample.MS, wall=one.wall + later / 1000)
            for one in came
        ]
    found = explained(make_run(tmp_path / "run", events=events))
    assert found["conclusion"]["action"] == action


def test_a_job_that_was_stopped_for_good_in_a_later_round_is_not_to_be_started_again(
    tmp_path: Path, explained: Any, command: Any
) -> None:
    end = [
        sample.at(3000, RoundStopped, 1),
        sample.at(3001, sample.e.JobEnded, 1, outcome="no_restart", exit_code=93, reason="asked"),
    ]
    events = [*sample.OPENING, *sample.begin(10, 0), *sample.CRASH, *sample.begin(2000, 1), *end]
    run = make_run(tmp_path / "run", events=events)
    found = explained(run)
    assert [one["name"] for one in found["rounds"]] == ["round 0"]
    assert (found["conclusion"]["action"], found["conclusion"]["reason"]) == ("stop", "asked")
    assert "\nadvice: stop: asked\n" in command("explain", run)


def test_a_run_in_which_nothing_failed(tmp_path: Path, explained: Any, command: Any) -> None:
    events = [*sample.OPENING, *sample.begin(10, 0), sample.RUN[-1]]
    run = make_run(tmp_path / "run", events=events)
    assert "conclusion: the job finished, and no round failed" in command("explain", run)
    found = explained(run)
    assert (found["rounds"], found["conclusion"]) == ([], None)


def test_a_job_that_ended_before_its_first_round_says_why(tmp_path: Path, command: Any) -> None:
    end = sample.at(20, sample.e.JobEnded, outcome="failed", exit_code=1, reason="no address")
    run = make_run(tmp_path / "run", events=[*sample.OPENING, end])
    assert "conclusion: no round failed; no address" in command("explain", run)


def test_a_node_that_stood_still_is_to_blame_and_not_the_rank_that_met_its_peers_gone(
    tmp_path: Path, explained: Any, command: Any
) -> None:
    second, e = 10**9, sample.e
    about = {"master_port": 5, "world_size": 2, "master_addr": "h"}
    loss = e.RoundBlamed(t=12 * second, round=0, number=0, node="b", line="node b is lost")
    stop = e.StopRequested(t=12 * second, round=0, reason="node b is lost", grace_s=2.0)
    line = "rank 1 (node b, pid 7) failed: RuntimeError: Connection reset by peer"
    late = [
        e.FailureDetected(t=25 * second, round=0, kind="crash", rank=1, since_ns=12 * second),
        e.Verdict(t=25 * second, round=0, kind="crash", rank=1, local_rank=0, pid=7, line=line),
    ]
    for name, ranks, told in (("a", [0], [loss, stop]), ("b", [1], late)):
        events = [
            e.JournalOpened(t=0, node=name, boot_id="b"),
            e.JobStarted(t=0, run_id="r", argv=["x"], nproc_per_node=1, max_restarts=1),
            e.RoundStarted(t=second, round=0, ranks=ranks, **about),
            *told,
        ]
        (tmp_path / f"journal-{name}.jsonl").write_bytes(b"".join(map(encode, events)))
    conclusion = explained(tmp_path)["conclusion"]
    assert (conclusion["cause"], conclusion["ranks"]) == ("node_failed", [])
    assert conclusion["nodes"] == ["b"]
    assert "Connection reset" not in command("explain", tmp_path).partition("round 0")[0]


def test_slow_ranks_are_named(tmp_path: Path, explained: Any, command: Any) -> None:
    slow = sample.at(20, SlowRank, 0, rank=1, on="n0", line="rank 1 (node n0) is slow")
    run = make_run(tmp_path / "run", events=[*sample.OPENING, *sample.begin(10, 0), slow])
    (line,) = [one for one in command("explain", run).splitlines() if one.startswith("slow rank: ")]
    assert "rank 1 (node n0) is slow" in line
    crashed = make_run(tmp_path / "crashed", events=[*sample.RUN, slow])
    lines = command("explain", crashed).splitlines()
    starts = [one.partition(":")[0] for one in lines if not one.startswith(" ")]
    assert starts[1:4] == ["conclusion", "advice", "slow rank"]
    assert len(explained(run)["slow"]) == 1


def test_a_folder_of_logs_needs_no_journal(tmp_path: Path, explained: Any, command: Any) -> None:
    log = make_log(tmp_path, "node-2/messages", f"Nov 22 10:10:00 node-2 kernel: x\n{XID}\n")
    make_log(tmp_path, "train.py", "raise ValueError('this is no log')\n")
    (tmp_path / "model.bin").write_bytes(b"weights\0\0")

    found = explained(tmp_path)
    assert found["job"] is None
    (case,) = found["rounds"]
    (finding,) = case["findings"]
    assert (finding["cause"], finding["nodes"]) == ("gpu_lost", ["node-2"])
    assert finding["source"] == f"{log}:2"
    assert (case["advice"]["action"], case["advice"]["nodes"]) == ("exclude", ["node-2"])
    assert found["conclusion"]["cause"] == "gpu_lost"
    assert "    at " in command("explain", log)


def test_how_far_a_foreign_job_came_is_not_made_up(tmp_path: Path, explained: Any) -> None:
    make_log(tmp_path, "rank2.log", 'Traceback (most recent call last):\nKeyError: "x"\n')
    conclusion = explained(tmp_path)["conclusion"]
    assert (conclusion["cause"], conclusion["action"]) == ("program_error", "restart")
    assert "iteration" not in conclusion["reason"]


def test_a_folder_of_dumps(tmp_path: Path, explained: Any) -> None:
    for one in (ranks := job(4)):
        if one.rank != 2:
            one.call("0", state="scheduled")
        one.write(tmp_path)
    found = explained(tmp_path)
    assert len(ranks) == 4
    assert (found["conclusion"]["cause"], found["conclusion"]["ranks"]) == ("host_lag", [2])


def test_of_dumps_of_several_iterations_the_newest_count(tmp_path: Path, explained: Any) -> None:
    """As an in-process restart leaves them: in the tenth rank 1 is to blame, before it rank 3."""
    for iteration, culprit in ((9, 3), (10, 1)):
        (directory := tmp_path / f"iter_{iteration}").mkdir()
        for one in job(4):
            if one.rank != culprit:
                one.call("0", state="scheduled")
            if (iteration, one.rank) != (10, 2):
                one.write(directory)
    found = explained(tmp_path)
    (round_,) = found["rounds"]
    causes = {(one["cause"], *one["ranks"]) for one in round_["findings"]}
    assert ("host_lag", 1) in causes
    assert ("host_lag", 3) not in causes
    assert any("iter_9" in text for text in found["problems"])
    assert any(text.endswith("iter_10") for text in round_["look"])


def test_files_that_are_left_out_are_counted(tmp_path: Path, explained: Any) -> None:
    log = make_log(tmp_path, "rank0.log", f"{XID}\n")
    os.mkfifo(tmp_path / "rank1.log")
    (tmp_path / "rank2.log").symlink_to(tmp_path / "gone")
    (problem,) = explained(tmp_path)["problems"]
    assert "2 files" in problem
    assert str(tmp_path / "rank1.log") in problem
    assert str(log) not in problem


def test_what_is_in_a_folder_that_may_not_be_entered_is_not_to_be_read(
    tmp_path: Path, explained: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link to such a place is odd: what it is a link to is not known."""
    for name in ("rank0.log", "inner/rank1.log", "inner/rank2.log"):
        make_log(tmp_path, name, f"{XID}\n")
    (tmp_path / "link.log").symlink_to(tmp_path / "inner/rank1.log")
    plain_stat = Path.stat

    def stat(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path.parent.name == "inner" or (follow_symlinks and path.name == "link.log"):
            raise PermissionError(13, "Permission denied", str(path))
        return plain_stat(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", stat)
    odd, closed = explained(tmp_path)["problems"]
    assert "1 file (pipe, device, or link to nothing)" in odd
    assert "2 files (not to be read)" in closed


def test_logs_that_may_not_be_read_are_said(
    tmp_path: Path, explained: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_log(tmp_path, "rank0.log", f"{XID}\n")
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    (problem,) = explained(tmp_path)["problems"]
    assert "1 file (not to be read)" in problem
    log = make_log(tmp_path / "run", "logs/attempt_0/1/stderr.log", "x\n")
    (first, _) = explained(make_run(tmp_path / "run", log_dir="logs"))["rounds"]
    assert f"what is in {log}: it may not be read" in first["unknown"]


@pytest.mark.parametrize("kind", ["log", "dump", "pipe"])
def test_a_folder_of_which_nothing_can_be_read_is_an_error(
    tmp_path: Path, command: Any, kind: str
) -> None:
    path = tmp_path / "rank0"
    match kind:
        case "log":
            path.symlink_to(tmp_path / "gone")
        case "dump":
            path.write_bytes(b"\x80\x02 no pickle")
        case "pipe":
            os.mkfifo(path)
    assert path.name in command("explain", tmp_path, code=2)


def test_beside_a_journal_that_cannot_be_read_there_are_logs(
    tmp_path: Path, command: Any, explained: Any
) -> None:
    (tmp_path / "journal-n0.jsonl").write_bytes(b"junk\n")
    command("explain", tmp_path, code=2)
    make_log(tmp_path, "logs/attempt_0/0/stderr.log", f"{XID}\n")
    found = explained(tmp_path)
    assert found["conclusion"]["cause"] == "gpu_lost"
    assert "holds no event" in found["problems"][0]
    stacks = tmp_path / "stacks-round0.txt"
    stacks.write_text("--- rank 0, pid 7 ---\n")
    assert str(stacks) in explained(tmp_path)["problems"][0]


@pytest.mark.parametrize("above", ["runs", "."])
def test_the_folder_above_run_directories_is_no_run(
    tmp_path: Path, command: Any, above: str
) -> None:
    runs = [make_run(tmp_path / "runs" / name, events=[*sample.OPENING]) for name in "ab"]
    make_log(tmp_path, "runs/a/logs/attempt_0/0/stderr.log", f"{XID}\n")
    err = command("explain", tmp_path / above, code=2)
    assert "name the directory of a run" in err
    assert f"{runs[0]}, {runs[1]}" in err


def test_logs_that_are_compressed_are_named(tmp_path: Path, explained: Any, command: Any) -> None:
    (tmp_path / "rank7.log.gz").write_bytes(gzip.compress(XID.encode()))
    (tmp_path / "data.tar.gz").write_bytes(gzip.compress(b"data"))
    err = command("explain", tmp_path, code=2)
    assert "compressed" in err
    assert "rank7.log.gz" in err
    make_log(tmp_path, "rank3.log", f"{XID}\n")
    (problem,) = explained(tmp_path)["problems"]
    assert "1 file (compressed" in problem


def test_a_job_whose_launcher_was_killed_says_how_far_it_came(
    tmp_path: Path, explained: Any
) -> None:
    started = [*sample.OPENING, *sample.begin(10, 0), sample.reached(900, 0, 27, 885)]
    opened = msgspec.structs.replace(this_process(0, "0.1.0"), pid=2**22 + 1, node="n0")
    run = make_run(tmp_path / "run", events=[opened, *started[1:]])
    found = explained(run)
    (round_,) = found["rounds"]
    assert "killed" in found["conclusion"]["text"]
    assert (round_["iteration"], round_.get("findings", [])) == (27, [])


def test_a_journal_that_was_cut_off_says_what_it_has_and_that_the_end_is_missing(
    tmp_path: Path, explained: Any, command: Any
) -> None:
    opened = msgspec.structs.replace(this_process(0, "0.1.0"), pid=2**22 + 1, node="n0")
    started = [opened, *sample.OPENING[1:], *sample.begin(10, 0), *sample.CRASH]
    run = make_run(tmp_path / "run", events=started)
    journal = run / "journal-n0.jsonl"
    journal.write_bytes(journal.read_bytes()[:-20])
    problem, job, conclusion, *_ = command("explain", run).splitlines()
    assert "cut off" in problem
    assert "no end recorded, and its launcher is gone" in job
    assert "rank 1" in conclusion
    found = explained(run)
    assert found["rounds"][0]["did"] == "nothing is recorded after it"


def test_a_hang_whose_verdict_has_the_recording_asks_for_no_dumps(
    tmp_path: Path, explained: Any
) -> None:
    recorded = [
        msgspec.structs.replace(one, line=f"{one.line}; recorded: rank 1 waits")
        if isinstance(one, sample.e.Verdict)
        else one
        for one in sample.RUN
    ]
    run = make_run(tmp_path / "run", events=recorded)
    assert not any("collectives" in text for text in explained(run)["rounds"][1]["unknown"])


def test_nothing_of_a_log_or_its_name_acts_on_the_terminal(
    tmp_path: Path, explained: Any, command: Any
) -> None:
    name = os.fsdecode(b"a\x1b[31m\xff.log")
    make_log(tmp_path, name, f"\x1b]0;title\x07{XID}\x1b[2J\n")
    assert "\x1b" not in command("explain", tmp_path)
    assert explained(tmp_path)["conclusion"]["cause"] == "gpu_lost"


def test_many_failures_are_bounded(tmp_path: Path, explained: Any, command: Any) -> None:
    events = list(sample.OPENING)
    for number in range(40):
        events += sample.begin(100 + number, number)
        events.append(
            sample.at(100.5 + number, sample.e.FailureDetected, number, kind="crash", rank=1)
        )
    run = make_run(tmp_path / "run", events=events)
    out = command("explain", run)
    assert "... 20 earlier failures: see --all" in out
    assert sum(line.startswith("round ") for line in out.splitlines()) == 3
    assert "round 21 to round 38: the same" in out
    assert "\nround 39" in out
    out = command("explain", run, "--all")
    assert sum(line.startswith("round ") for line in out.splitlines()) == 40
    assert len(explained(run)["rounds"]) == 40


def test_a_terminal_gets_folded_lines_and_colours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "job.log"
    log.write_text(f"[rank1]: ValueError: {'a long reason, ' * 20}\n")
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert main([str(log)]) == 0
    shown = terminal.getvalue()
    assert "\x1b[31mconclusion" in shown
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert max(map(len, lines)) <= 120
    assert any(line.startswith("     ") for line in lines)


@pytest.mark.parametrize(
    ("line", "red"),
    [
        ("[undaunted] preempted (exit code 75): stopped by the user (Ctrl-C)", False),
        ("slurmstepd: error: *** JOB 7 ON a1 CANCELLED AT 2026-11-28T10:00:00 ***", False),
        ("ValueError: x", True),
    ],
)
def test_only_a_failure_is_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, red: bool
) -> None:
    (tmp_path / "job.log").write_text(f"step 1 loss 2.0\n{line}\n")
    monkeypatch.setattr("sys.stdout", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert main([str(tmp_path / "job.log")]) == 0
    assert "conclusion: " in terminal.getvalue()
    assert ("\x1b[31m" in terminal.getvalue()) is red


@pytest.mark.parametrize(
    ("outcome", "allowed", "advice"),
    [
        ("failed", 3, "start the job again: "),
        ("failed", 0, "start the job again (a launcher with --max-restarts 1 or more does so): "),
        ("", 3, "restart: "),
    ],
)
def test_a_restart_that_no_launcher_makes_is_up_to_the_user(
    tmp_path: Path, explained: Any, command: Any, outcome: str, allowed: int, advice: str
) -> None:
    events = [
        msgspec.structs.replace(event, max_restarts=allowed)
        if isinstance(event, JobStarted)
        else event
        for event in sample.RUN
        if not isinstance(event, JobEnded)
    ]
    if outcome:
        events.append(sample.at(9_000_000, JobEnded, 0, outcome=outcome, exit_code=1))
    run = make_run(tmp_path / "run", events=events)
    (line,) = re.findall("^advice: (.*)", command("explain", run), re.MULTILINE)
    assert line.startswith(advice)
    assert explained(run)["conclusion"]["action"] == "restart"


def test_a_fifo_is_refused_and_not_waited_for(tmp_path: Path, command: Any) -> None:
    path = tmp_path / "rank3.log"
    os.mkfifo(path)
    assert str(path) in command("explain", path, code=2)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_how_much_of_the_logs_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("undaunted.base.shown._SILENT_S", 0.0)
    for name in ("a", "b"):
        (tmp_path / name).write_text("hello\n" * 2**18)
    monkeypatch.setattr("sys.stderr", err := Terminal())
    assert main([str(tmp_path), "--json"]) == 0
    assert "reading 2 logs" in err.getvalue()
    assert "3.0/3.0 MiB" in err.getvalue()


def test_a_log_of_a_job_that_went_on_tells_of_what_it_survived(
    tmp_path: Path, explained: Any, command: Any
) -> None:
    log = (
        "[undaunted] first cause in round 0: node n2 was lost: silent for 5.0 s\n"
        "[undaunted] restart 1 of 10: 2 ranks of this node running again 8.1 s after the failure\n"
    )
    path = make_log(tmp_path, "slurm-5.out", log)
    found = explained(path)
    assert found["conclusion"] is None
    assert found["survived"] == ["node n2 was lost: silent for 5.0 s"]
    assert "survived: node n2 was lost" in command("explain", path)
