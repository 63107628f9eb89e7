from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest

from undaunted.attribution.findings import CAUSES, LIKELY, SURE
from undaunted.attribution.logs.analyse import Reading, analyse, judge, read_logs
from undaunted.attribution.logs.rules import rules
from undaunted.attribution.logs.scan import LogScan

if TYPE_CHECKING:
    from pathlib import Path

XID = "Nov 22 10:10:05 node-2 kernel: NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."
IMPORT = "ImportError: cannot import name 'x' from 'y'"
KILLED = "RuntimeError: DataLoader worker (pid 4412) is killed by signal: Killed."
FAILED = "RuntimeError: mat1 and mat2 shapes cannot be multiplied"


def steps(first: int, last: int) -> list[str]:
    return [f"0: iteration {n}/ 500 | lm loss: 2.5E+00 |" for n in range(first, last)]


def watchdogs(*ranks: int) -> list[str]:
    return [
        f"{rank}: [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)"
        for rank in ranks
    ]


def read(tmp_path: Path, *lines: str, world_size: int | None = 4) -> Reading:
    path = tmp_path / "log"
    path.write_text("\n".join(lines) + "\n")
    return read_logs([path], world_size=world_size)


def test_severity_comes_before_time(tmp_path: Path) -> None:
    found = read(tmp_path, *steps(1, 9), *watchdogs(0, 1, 2), XID).findings
    assert [one.cause for one in found] == ["gpu_lost", "collective_timeout"]
    assert found[0].nodes == ("node-2",)
    assert found[0].source == f"{tmp_path}/log:12"
    assert found[0].t > 0
    assert found[0].quote == XID


def test_of_equally_severe_ones_the_first_is_the_root(tmp_path: Path) -> None:
    lines = [f"1: {FAILED}", "2: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"]
    assert [one.cause for one in read(tmp_path, *lines).findings] == [
        "program_error",
        "gpu_out_of_memory",
    ]
    assert read(tmp_path, *reversed(lines)).findings[0].ranks == (2,)


def test_what_follows_is_the_root_only_where_nothing_else_is(tmp_path: Path) -> None:
    found = read(tmp_path, *watchdogs(0, 1, 2, 3)).findings
    assert [one.cause for one in found] == ["collective_timeout"]
    assert found[0].ranks == ()


def test_the_few_that_do_not_time_out_were_waited_for(tmp_path: Path) -> None:
    said = [f"{rank}: hello" for rank in range(4)]
    (found,) = read(tmp_path, *said, *watchdogs(0, 1, 3)).findings
    assert (found.ranks, found.inferred) == ((2,), True)  # the line is of another rank


def test_the_few_at_an_earlier_collective_were_waited_for(tmp_path: Path) -> None:
    late = watchdogs(2)[0].replace("SeqNum=7", "SeqNum=6")
    (found,) = read(tmp_path, *watchdogs(0, 1, 3), late).findings
    assert (found.ranks, found.inferred) == ((2,), False)


def late_by_one(ahead: list[int]) -> list[str]:
    return [watchdogs(7)[0].replace("SeqNum=7", "SeqNum=6"), *watchdogs(*ahead)]


def test_not_all_ranks_of_a_job_need_say_that_one_was_behind(tmp_path: Path) -> None:
    (found,) = read(tmp_path, *late_by_one([3, 5]), world_size=None).findings
    assert found.ranks == (7,)
    (found,) = read(tmp_path, *late_by_one([3]), world_size=None).findings
    assert found.ranks == ()  # who of the two is early, and who is late?


CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:544] Connection closed by peer [10.0.0.2]:3061"


@pytest.mark.parametrize(
    ("exit_code", "cause"), [(-9, "killed"), (-6, "peer_lost"), (1, "peer_lost")]
)
def test_who_was_killed_first_is_why_others_lost_a_peer(
    tmp_path: Path, exit_code: int, cause: str
) -> None:
    lines = [f"[rank{rank}]: {line}" for rank in (2, 4) for line in (*TRACEBACK, CLOSED)]
    block = ["  rank      : 0 (local_rank: 0)", f"  exitcode  : {exit_code} (pid: 4541)"]
    first = "Root Cause (first observed failure):"
    root = read(tmp_path, *lines, first, "[0]:", *block, world_size=8).findings[0]
    assert root.cause == cause
    assert root.ranks == ((0,) if cause == "killed" else ())


def test_horovod_says_which_process_was_killed(tmp_path: Path) -> None:
    lines = ["[1]<stderr>:Killed", f"[0]<stderr>:{CLOSED}"]
    root = read(tmp_path, *lines, "Process 1 exit with status code 137.").findings[0]
    assert (root.cause, root.ranks) == ("killed", (1,))


def test_who_is_to_blame_stands_beside_its_own_line(tmp_path: Path) -> None:
    late = watchdogs(2)[0].replace("SeqNum=7", "SeqNum=6")
    files = []
    for rank, line in enumerate([*watchdogs(0, 1), late, *watchdogs(3)]):
        files.append(tmp_path / f"rank{rank}.log")
        files[-1].write_text(f"{rank}: hello\n" * rank + f"{line}\n")
    (found,) = read_logs(files).findings
    assert (found.quote, found.source) == (late, f"{files[2]}:3")


def test_a_good_log_has_no_finding(tmp_path: Path) -> None:
    reading = read(tmp_path, *steps(1, 9), "training completed", "0: recvValue failed on TCPStore")
    assert reading.findings == []
    assert (reading.stepped, reading.step, reading.action) == (True, 8, "restart")


@pytest.mark.parametrize("end", ["CANCELLED AT x DUE TO TIME LIMIT", "CANCELLED AT x"])
def test_an_end_that_was_asked_for_explains_what_comes_after_it(tmp_path: Path, end: str) -> None:
    asked = f"slurmstepd: error: *** JOB 7 ON a1 {end} ***"
    cause = "time_limit" if "LIMIT" in end else "cancelled"
    assert [one.cause for one in read(tmp_path, asked, f"1: {FAILED}").findings] == [cause]
    assert [one.cause for one in read(tmp_path, f"1: {FAILED}", asked).findings] == [
        "program_error"
    ]


ASKED = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-22T10:10:00 ***"


@pytest.mark.parametrize(
    ("asked", "failed", "causes"),
    [
        ("", "", {"cancelled", "program_error"}),  # which came first is not known
        ("2026-11-22 10:10:00 ", "", {"cancelled", "program_error"}),
        ("2026-11-22 10:10:00 ", "2026-11-22 10:10:00 ", {"cancelled", "program_error"}),
        ("2026-11-22 10:10:00 ", "2026-11-22 10:09:59 ", {"program_error"}),
        ("2026-11-22 10:10:00 ", "2026-11-22 10:10:01 ", {"cancelled"}),
    ],
)
def test_the_order_of_lines_of_two_files_is_known_by_their_times(
    tmp_path: Path, asked: str, failed: str, causes: set[str]
) -> None:
    files = {"a.log": [asked + ASKED], "b.log": ["hello"] * 5 + [failed + FAILED]}
    assert {one.cause for one in read_files(tmp_path, files).findings} == causes


def test_ranks_of_a_broken_device_are_those_with_errors_on_its_node(tmp_path: Path) -> None:
    lines = [f"{rank}: node-{rank // 2}:7:7 [0] NCCL INFO up" for rank in range(8)]
    died = "srun: error: node-2: task 5: Killed"
    other = "srun: error: node-0: task 0: Killed"
    root = read(tmp_path, *lines, XID, died, other).findings[0]
    assert (root.ranks, root.nodes) == ((5,), ("node-2",))


def test_the_node_of_a_rank_is_known_from_other_lines(tmp_path: Path) -> None:
    root = read(tmp_path, "3: node-7:7:7 [0] NCCL INFO up", f"3: {FAILED}").findings[0]
    assert (root.ranks, root.nodes) == ((3,), ("node-7",))


def test_files_of_several_nodes_are_one_job(tmp_path: Path) -> None:
    for number, text in enumerate((watchdogs(0, 1), [XID], watchdogs(2))):
        (tmp_path / f"{number}").write_text("\n".join(text))
    found = analyse(sorted(tmp_path.iterdir()))
    assert [one.cause for one in found] == ["gpu_lost", "collective_timeout"]
    assert found[0].source.endswith("1:1")


def test_what_the_log_of_a_node_says_before_later_steps_was_survived(tmp_path: Path) -> None:
    (tmp_path / "kernel").write_text(XID)
    (tmp_path / "train").write_text(
        "\n".join(f"2026-11-22 10:1{n}:00 0: step {n} loss 2.0 lr 0.1" for n in range(4))
    )
    (tmp_path / "kernel").touch()
    assert analyse([tmp_path / "kernel", tmp_path / "train"]) == []


def read_files(tmp_path: Path, files: dict[str, list[str]], *, names: bool = True) -> Reading:
    for name, lines in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    return read_logs([tmp_path / name for name in files], names=names)


def test_the_rank_is_that_of_the_file_where_lines_say_none(tmp_path: Path) -> None:
    root = read_files(tmp_path, {"rank0.log": ["hello"], "rank1.log": [FAILED]}).findings[0]
    assert (root.cause, root.ranks) == ("program_error", (1,))
    said = read_files(tmp_path, {"rank0.log": ["hello"], "rank1.log": [f"7: {FAILED}"]})
    assert said.findings[0].ranks == (7,)
    root = read_files(tmp_path, {"rank1.log": [FAILED]}, names=False).findings[0]
    assert root.ranks == ()


def test_the_file_of_a_rank_that_does_not_say_what_all_others_say(tmp_path: Path) -> None:
    timeout = "Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE)"
    files = {f"attempt_0/{rank}/stderr.log": [timeout] for rank in range(8)}
    files["attempt_0/5/stderr.log"] = ["hello"]
    assert read_files(tmp_path, files).findings[0].ranks == (5,)


def test_little_is_kept_of_a_file_that_was_read(tmp_path: Path) -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    text = "\n".join(f"say {a}{b}{c}" for a in letters for b in letters for c in letters[:3])
    for number in range(12):
        (tmp_path / f"{number}").write_text(text)
    files = sorted(tmp_path.iterdir())
    read_logs(files[:1])
    assert _peak(files) - _peak(files[:2]) < 10 * 50_000


def _peak(files: list[Path]) -> int:
    """Return how many bytes of memory are used at most while files are read."""
    tracemalloc.start()
    try:
        read_logs(files)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_an_end_that_was_asked_for_is_nobody_in_particular(tmp_path: Path) -> None:
    files = {"rank0.log": ["hello"], "rank1.log": ["KeyboardInterrupt"]}
    assert read_files(tmp_path, files).findings[0].ranks == ()


@pytest.mark.parametrize(
    "files",
    [
        {"node0/rank1.log": ["hello"], "node1/rank1.log": [FAILED]},  # each node counts its own
        {"rank1.log": ["world size: 1", FAILED]},
        {"attempt_0/0/stderr.log": ["world size: 4"], "attempt_0/1/stderr.log": [FAILED]},
    ],
)
def test_names_of_files_that_cannot_be_ranks_of_the_job(
    tmp_path: Path, files: dict[str, list[str]]
) -> None:
    assert read_files(tmp_path, files).findings[0].ranks == ()


def everywhere(line: str, world_size: int = 4) -> list[str]:
    return [f"{rank}: {line}" for rank in range(world_size)]


def test_stop_if_all_ranks_fail_alike_before_the_first_step(tmp_path: Path) -> None:
    assert read(tmp_path, *everywhere(IMPORT)).action == "stop"


@pytest.mark.parametrize(
    ("lines", "world_size"),
    [
        (everywhere(IMPORT, 3), 4),  # one rank does not say it
        (everywhere(IMPORT), None),  # how many ranks there are is not known
        (everywhere(IMPORT, 1), 1),  # one rank alone may have a bad node
        ([*steps(1, 3), *everywhere(IMPORT)], 4),  # it has worked before
        (everywhere("ConnectionError: hub.example.org"), 4),  # may be better next time
        (everywhere("OSError: [Errno 5] Input/output error: '/data'"), 4),
        (everywhere("OSError: [Errno 28] No space left on device"), 4),
        (watchdogs(0, 1, 2, 3), 4),
        ([], 4),
    ],
)
def test_in_doubt_restart(tmp_path: Path, lines: list[str], world_size: int | None) -> None:
    assert read(tmp_path, *lines, world_size=world_size).action == "restart"


def test_exclude_only_what_has_a_name(tmp_path: Path) -> None:
    assert read(tmp_path, XID).action == "exclude"
    assert read(tmp_path, XID.partition("kernel: ")[2]).action == "restart"


def test_a_log_that_grows_is_judged_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("\n".join(steps(1, 5)) + "\n")
    scan = LogScan(str(path), rules())
    scan.read(to_end=False)
    assert judge([scan]).findings == []
    with path.open("a") as file:
        file.write(XID + "\n")
    scan.read(to_end=False)
    assert [one.cause for one in judge([scan]).findings] == ["gpu_lost"]
    assert judge([scan]) == judge([scan])


def test_findings_have_causes_of_the_table(tmp_path: Path) -> None:
    for one in read(tmp_path, XID, *watchdogs(1), f"2: {FAILED}").findings:
        assert one.cause in CAUSES
        assert 0 < one.confidence <= 1


def torchrun_blames(rank: int, host: str, exit_code: int = 1) -> list[str]:
    return [
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2026-11-22_10:10:10",
        f"  host      : {host}",
        f"  rank      : {rank} (local_rank: 1)",
        f"  exitcode  : {exit_code} (pid: 4242)",
        "  error_file: <N/A>",
        "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
    ]


def test_a_worker_that_was_killed_has_most_likely_had_no_memory(tmp_path: Path) -> None:
    (killed,) = read(tmp_path, f"1: {KILLED}").findings
    (out,) = read(tmp_path, "kernel: Out of memory: Killed process 4711 (python)").findings
    assert killed.cause == out.cause == "host_out_of_memory"
    assert SURE <= killed.confidence <= LIKELY < out.confidence


@pytest.mark.parametrize(
    ("cause", "lines", "telling"),
    [
        (
            "native_crash",
            ["terminate called after throwing an instance of 'std::runtime_error'"],
            "  what():  index file is of version 3",
        ),
        (
            "native_crash",
            ["terminate called after throwing an instance of 'std::out_of_range'"],
            "  what():  vector::_M_range_check: __n (which is 9) >= this->size() (which is 4)",
        ),
        (
            "native_crash",
            ["  exitcode  : -11 (pid: 4102)"],
            "  traceback : Signal 11 (SIGSEGV) received by PID 4102",
        ),
        (
            "host_out_of_memory",
            [
                "kernel: python3 invoked oom-killer: gfp_mask=0x140cca, order=0",
                "kernel: oom-kill:constraint=CONSTRAINT_NONE,task=python3,pid=4103",
            ],
            "kernel: Out of memory: Killed process 4103 (python3) total-vm:812345678kB",
        ),
        (
            "disk_full",
            ["RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 128 vs 22"],
            "OSError: [Errno 28] No space left on device",
        ),
        (
            "peer_lost",
            [
                "Traceback (most recent call last):",
                '  File "/l/torch/distributed/distributed_c10d.py", line 9, in all_reduce',
                '    raise ConnectionResetError(104, "Connection reset by peer")',
            ],
            "ConnectionResetError: [Errno 104] Connection reset by peer",
        ),
        (
            "killed",
            ["api.py:900] Sending process 4101 closing signal SIGTERM"],
            "api.py:874] failed (exitcode: -9) local_rank: 3 (pid: 4103) of binary: python3",
        ),
    ],
)
def test_the_most_telling_line_is_quoted(
    tmp_path: Path, cause: str, lines: list[str], telling: str
) -> None:
    root = read(tmp_path, *lines, telling).findings[0]
    assert (root.cause, root.quote) == (cause, " ".join(telling.split()))


def test_an_exception_of_cpp_that_follows_is_no_crash(tmp_path: Path) -> None:
    lines = [
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        "  what():  [Rank 0] Process group watchdog thread terminated with exception: NCCL error",
    ]
    assert all(CAUSES[one.cause].follows for one in read(tmp_path, *lines).findings)


def test_the_summary_of_torchrun_says_who_and_other_lines_why(tmp_path: Path) -> None:
    traceback = ["Traceback (most recent call last):", '  File "t.py", line 3, in f', FAILED]
    found = read(tmp_path, *traceback, *torchrun_blames(3, "node-7")).findings
    assert (found[0].cause, found[0].ranks, found[0].nodes) == ("program_error", (3,), ("node-7",))
    assert found[0].quote == FAILED


def test_the_summary_of_torchrun_is_found_behind_many_ends(tmp_path: Path) -> None:
    ends = [f"Sending process {pid} closing signal SIGTERM" for pid in range(100, 140)]
    found = read(tmp_path, *ends, *torchrun_blames(10, "n4", -9)).findings
    assert (found[0].cause, found[0].ranks, found[0].nodes) == ("killed", (10,), ("n4",))


def test_summaries_of_several_agents_that_differ_name_nobody(tmp_path: Path) -> None:
    both = [*torchrun_blames(3, "node-7"), *torchrun_blames(9, "node-8")]
    found = read(tmp_path, FAILED, *both).findings
    assert (found[0].cause, found[0].ranks, found[0].nodes) == ("program_error", (), ())


def test_a_rank_that_says_why_itself_is_not_changed_by_a_summary(tmp_path: Path) -> None:
    found = read(tmp_path, f"1: {FAILED}", *torchrun_blames(3, "node-7")).findings
    assert found[0].ranks == (1,)


@pytest.mark.parametrize("exit_code", [-6, -9])
def test_the_first_to_end_after_a_timeout_of_all_ranks_is_not_blamed(
    tmp_path: Path, exit_code: int
) -> None:
    ended = [torchrun_notices(exit_code), *torchrun_blames(3, "node-7", exit_code)]
    found = read(tmp_path, *watchdogs(0, 1, 2, 3), *ended).findings
    assert not any(one.ranks for one in found)
    assert found[0].cause == "collective_timeout"


LOST = "RuntimeError: [pair.cc:537] Read error [127.0.0.1]:228: Connection reset by peer"


def torchrun_notices(exit_code: int) -> str:
    return f"E1123 15:50:50.116 411 api.py:1002] failed (exitcode: {exit_code}) local_rank: 1"


def test_a_rank_that_was_killed_explains_connections_that_ended(tmp_path: Path) -> None:
    lines = ["1: hello", f"0: {LOST}", f"3: {LOST}", torchrun_notices(-9)]
    root = read(tmp_path, *lines, *torchrun_blames(2, "node-7", -9)).findings[0]
    assert (root.cause, root.ranks, root.nodes) == ("killed", (2,), ("node-7",))
    other = [*torchrun_blames(3, "node-8", -6), *torchrun_blames(2, "node-7", -9)]
    assert read(tmp_path, *lines, *other).findings[0].ranks == (2,)
    both = [*torchrun_blames(3, "node-8", -9), *torchrun_blames(2, "node-7", -9)]
    assert read(tmp_path, *lines, *both).findings[0].ranks == ()


def test_an_error_of_the_program_says_more_than_that_it_was_killed(tmp_path: Path) -> None:
    lines = [f"1: {FAILED}", torchrun_notices(-9), *torchrun_blames(2, "node-7", -9)]
    assert read(tmp_path, *lines).findings[0].cause == "program_error"


@pytest.mark.parametrize(
    "line",
    [
        "Killed",
        "3: Killed",
        "/job/run.sh: line 3: 12345 Killed                  python train.py",
        "bash: line 1:    71 Killed                  torchrun train.py",
    ],
)
def test_a_shell_says_that_a_process_was_killed(tmp_path: Path, line: str) -> None:
    assert read(tmp_path, f"0: {LOST}", line).findings[0].cause == "killed"


@pytest.mark.parametrize("line", ["killed 3 idle workers", "not killed"])
def test_other_lines_with_the_word_killed(tmp_path: Path, line: str) -> None:
    assert read(tmp_path, line).findings == []


@pytest.mark.parametrize(
    ("line", "ranks"),
    [
        ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0 cgroup. Some of your", ()),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks", ()),
        ("[2026-11-22T10:10:10.123] error: Detected 3 oom_kill events in StepId=7.batch.", ()),
        ("srun: error: node-1: task 3: Out Of Memory", (3,)),
    ],
)
def test_slurm_says_that_a_node_ran_out_of_memory(
    tmp_path: Path, line: str, ranks: tuple[int, ...]
) -> None:
    root = read(tmp_path, f"0: {LOST}", line).findings[0]
    assert (root.cause, root.ranks) == ("host_out_of_memory", ranks)


TRACEBACK = ["Traceback (most recent call last):", '  File "/x/t.py", line 4, in <module>']


@pytest.mark.parametrize(
    "prefix",
    [
        "10:10:0{n} ",
        "6: 10:10:0{n} ",
        "16:20:11.12345{n} ",
        "1763806205.12{n} ",
        "6: I1122 10:10:05.12{n} ",
        "2026-11-22 10:10:05,123 node-4 rank=6 ERROR ",
        "(node-4, rank 6) ",
        "2026-11-22T10:10:05+01:00 [6/8] ",
        "node-4 | 10:10:0{n} | ",
        "<<worker  {n}>> ",
        "[1,6]<stderr>: ",
    ],
)
def test_what_stands_before_a_traceback_stands_before_its_error(
    tmp_path: Path, prefix: str
) -> None:
    error = "IndexError: index 7 is out of bounds"
    lines = [*TRACEBACK, "    x[7]", error, "RuntimeError: Connection reset by peer"]
    lines = [prefix.format(n=n) + line for n, line in enumerate(lines)]
    root = read(tmp_path, *lines, world_size=8).findings[0]
    assert root.cause == "program_error"
    assert root.quote.endswith(error)
    assert root.ranks in {(), (6,)}


def test_a_rank_is_found_in_what_stands_before_a_traceback(tmp_path: Path) -> None:
    lines = [
        f"at node-4 rank={rank} ERROR {line}"
        for line in [*TRACEBACK, "    x[7]", FAILED]
        for rank in (5, 6)
    ]
    assert read(tmp_path, *lines).findings[0].ranks == (5, 6)


def test_messages_of_json_are_read(tmp_path: Path) -> None:
    lost = '{"rank":1,"msg":"Connection reset by peer"}'
    root = read(
        tmp_path, '{"rank":2,"level":"error","msg":"ValueError: bad batch"}', lost
    ).findings[0]
    assert (root.ranks, root.quote[:9]) == ((2,), '{"rank":2')
    whole = "\\n".join([*TRACEBACK, "    x[7]", "ValueError: bad batch", ""]).replace('"', r"\"")
    root = read(tmp_path, f'{{"rank": 2, "message": "{whole}"}}', lost).findings[0]
    assert (root.cause, root.ranks) == ("program_error", (2,))


@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "3: [2026-11-22 10:10:06,001] ", "n7 @ 3 > "])
def test_lines_of_the_program_in_a_traceback_are_no_messages(tmp_path: Path, prefix: str) -> None:
    lines = [
        *TRACEBACK,
        '    with explain_errors("CUDA out of memory: lower the batch size"):',
        '  File "/x/data.py", line 7, in get',
        '    error = "No space left on device"',
        "            ^^^^^",
        "KeyError: 'image'",
    ]
    (found,) = read(tmp_path, *(prefix + line for line in lines)).findings
    assert found.cause == "program_error"
    assert found.quote.endswith("KeyError: 'image'")


def test_the_error_is_quoted_and_not_the_line_that_raises_it(tmp_path: Path) -> None:
    error = "OSError: [Errno 28] No space left on device"
    (found,) = read(
        tmp_path, *TRACEBACK, '    raise OSError(28, "No space left on device")', error
    ).findings
    assert (found.cause, found.quote) == ("disk_full", error)


def test_what_follows_a_traceback_is_a_message_again(tmp_path: Path) -> None:
    lines = [
        *TRACEBACK,
        "    f()",
        "KeyError: 1",
        "    CUDA out of memory. Tried to allocate 2 GiB",
    ]
    causes = {one.cause for one in read(tmp_path, *lines).findings}
    assert causes == {"program_error", "gpu_out_of_memory"}


def test_siblings_that_torchrun_ends_have_not_ended_by_themselves(tmp_path: Path) -> None:
    lines = ["[rank2]: Traceback (most recent call last):", '[rank2]:   File "t.py", line 3']
    siblings = [
        f"W1122 12:00:00.000000 9 api.py:897] Sending process {pid} closing signal SIGTERM"
        for pid in (4, 5)
    ]
    found = read(tmp_path, *lines, f"[rank2]: {FAILED}", *siblings, torchrun_notices(1)).findings
    assert [(one.cause, one.ranks) for one in found] == [("program_error", (2,))]
    signal = "W1122 12:00:00.000000 9 api.py:723] Received 15 death signal, shutting down workers"
    found = read(tmp_path, *steps(1, 9), signal, *siblings).findings
    assert [one.cause for one in found] == ["terminated"]


@pytest.mark.parametrize(
    "aborted",
    [
        ["terminate called after throwing an instance of 'c10::DistBackendError'"],
        ["srun: error: n1: task 1: Aborted (core dumped)"],
        [
            "E1123 15:50:50.116 411 api.py:1002] failed (exitcode: -6) local_rank: 1",
            "  exitcode  : -6 (pid: 3438)",
            "  traceback : Signal 6 (SIGABRT) received by PID 3438",
        ],
    ],
)
def test_nobody_ends_a_process_that_aborts_after_a_timeout(
    tmp_path: Path, aborted: list[str]
) -> None:
    found = read(tmp_path, *watchdogs(0, 1, 2, 3), *aborted).findings
    assert [one.cause for one in found] == ["collective_timeout"]


def test_a_single_rank_that_says_nothing_at_all_was_waited_for(tmp_path: Path) -> None:
    found = read(tmp_path, *watchdogs(0, 1, 2, 3, 4, 6, 7), world_size=None).findings[0]
    assert (found.ranks, found.inferred) == ((5,), True)
    found = read(tmp_path, *watchdogs(*range(7)), world_size=8).findings[0]
    assert (found.ranks, found.inferred) == ((7,), True)
    assert read(tmp_path, *watchdogs(*range(6)), world_size=8).findings[0].ranks == ()
    assert read(tmp_path, *watchdogs(0, 2), world_size=None).findings[0].ranks == ()


def test_the_time_is_that_of_the_end_and_not_of_the_beginning(tmp_path: Path) -> None:
    lines = ["2026-11-22 10:00:00 INFO begins", "Traceback (most recent call last):"]
    lines += ['  File "t.py", line 3, in f', FAILED]
    begun = read(tmp_path, *lines).findings[0].t
    ended = ["2026-11-22 11:00:00 WARNING api.py] Sending process 7 closing signal SIGTERM"]
    assert read(tmp_path, *lines, *ended).findings[0].t == begun + 3600
    summary = ["Root Cause (first observed failure):", "[0]:", "  time      : 2026-11-22_12:00:00"]
    summary += ["  host      : n1", "  rank      : 0 (local_rank: 0)", "  exitcode  : 1 (pid: 8)"]
    assert read(tmp_path, *lines, *summary).findings[0].t == begun + 7200


def test_an_exit_code_says_that_the_program_failed_if_nothing_says_more(tmp_path: Path) -> None:
    ended = ["Sending process 7 closing signal SIGTERM", torchrun_notices(1)]
    found = read(tmp_path, *ended, *torchrun_blames(2, "node-7", 1)).findings
    assert (found[0].cause, found[0].ranks, found[0].nodes) == ("program_error", (2,), ("node-7",))
    assert found[0].confidence < SURE
    assert "exitcode" in found[0].quote
    assert found[1:] == []
    found = read(tmp_path, f"0: {LOST}", torchrun_notices(1), *torchrun_blames(2, "n", 1)).findings
    assert [one.cause for one in found] == ["peer_lost"]
    found = read(tmp_path, *ended, *torchrun_blames(2, "node-7", -15)).findings
    assert found[0].cause == "terminated"


def test_the_error_of_a_process_that_was_started_says_more_than_that_it_failed(
    tmp_path: Path,
) -> None:
    raised = "torch.multiprocessing.spawn.ProcessRaisedException:"
    said = "-- Process 1 terminated with the following error:"
    error = "RuntimeError: Error(s) in loading state_dict for GPT:"
    for first in (raised, f"{raised} ", "Exception: "):
        found = read(tmp_path, *TRACEBACK, first, said, *TRACEBACK, error).findings
        assert [one.cause for one in found] == ["checkpoint_mismatch"]


@pytest.mark.parametrize(
    ("line", "error", "cause"),
    [
        ("assert torch.isfinite(delta).all()", "AssertionError", "not_finite"),
        ("assert not np.isnan(loss)", "AssertionError", "not_finite"),
        ("assert not isinstance(loss, str)", "AssertionError", "program_error"),
        ("y = x[torch.isfinite(x)]", "IndexError: index 3 is out of bounds", "program_error"),
    ],
)
def test_an_assertion_without_words_says_what_its_source_tests(
    tmp_path: Path, line: str, error: str, cause: str
) -> None:
    assert read(tmp_path, *TRACEBACK, f"    {line}", error).findings[0].cause == cause


def test_paddle_says_which_ranks_have_ended(tmp_path: Path) -> None:
    crash = "*** SIGSEGV (@0x0) received by PID 24044 (TID 0x7f64) from PID 0; stack trace: ***"
    end = "ABORT!!! Out of all 4 trainers, the trainer process with rank=[0, 2] was aborted."
    found = read(tmp_path, crash, end).findings[0]
    assert (found.cause, found.ranks) == ("native_crash", (0, 2))
