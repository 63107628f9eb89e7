from __future__ import annotations

import itertools
import resource
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from undaunted.attribution.logs import scan as scan_module
from undaunted.attribution.logs.rules import Fit, Rules, rules
from undaunted.attribution.logs.scan import CHUNK_BYTES, MOST_HITS, LogScan

if TYPE_CHECKING:
    from pathlib import Path

LOST = b"kernel: NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\n"
ILLEGAL = b"[rank5]: RuntimeError: CUDA error: an illegal memory access was encountered\n"


def step(number: int) -> bytes:
    return (
        b" iteration %8d/  500000 | lm loss: 2.7E+00 | number of nan iterations:   0 |\n" % number
    )


def scanned(path: Path, text: bytes) -> LogScan:
    path.write_bytes(text)
    scan = LogScan(str(path), rules())
    scan.read()
    return scan


def causes(scan: LogScan) -> list[str]:
    return [one.cause for one in scan.seen()]


def test_a_line_is_found_with_its_number_and_text(tmp_path: Path) -> None:
    scan = scanned(tmp_path / "log", step(1) + ILLEGAL)
    (seen,) = scan.seen()
    (hit,) = seen.hits
    assert (seen.cause, hit.line, hit.ranks) == ("device_fault", 2, (5,))
    assert hit.quote == ILLEGAL.decode().strip()
    assert (scan.steps, scan.last_step, scan.lines) == (1, 1, 2)


def test_two_steps_after_a_line_it_was_survived(tmp_path: Path) -> None:
    one = scanned(tmp_path / "one", step(1) + ILLEGAL + step(2) + step(2))
    assert causes(one) == ["device_fault"]
    two = scanned(tmp_path / "two", step(1) + ILLEGAL + step(2) + step(3))
    assert causes(two) == []


def test_a_program_that_began_again_has_survived_what_was_before(tmp_path: Path) -> None:
    scan = scanned(tmp_path / "log", step(500) + ILLEGAL + step(480) + LOST)
    assert causes(scan) == ["gpu_lost"]


@pytest.mark.parametrize(
    "after",
    [
        ["Epoch 2/9", "Epoch 3/9"],
        [
            "Epoch 2: 50%| | 1/2 [00:01<00:09, 1.8it/s]",
            "Epoch 3: 50%| | 1/2 [00:01<00:09, 1.8it/s]",
        ],
        ["rank 0 iteration 8", "rank 0 iteration 9"],
        ["Epoch 1/9"],  # after the epochs before: the program began again
        ["Job completed successfully"],
    ],
)
def test_what_a_program_says_while_it_goes_on(tmp_path: Path, after: list[str]) -> None:
    before = ["Epoch 3/9"] if len(after) == 1 else ["Epoch 1/9", "rank 0 iteration 7"]
    text = "\n".join([*before, ILLEGAL.decode().strip(), *after]).encode()
    assert causes(scanned(tmp_path / "log", text)) == []
    text = "\n".join([*before, *after, ILLEGAL.decode().strip()]).encode()
    assert causes(scanned(tmp_path / "log", text)) == ["device_fault"]


def test_steps_that_are_counted_anew_in_each_epoch_are_no_new_beginning(tmp_path: Path) -> None:
    steps = [f"Epoch 1, step {n}, loss 2.1" for n in range(30)]
    text = "\n".join([*steps, ILLEGAL.decode().strip(), "Epoch 2, step 0, loss 2.1"]).encode()
    assert causes(scanned(tmp_path / "log", text)) == ["device_fault"]


def test_a_growing_file_is_read_on_from_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(step(1) + ILLEGAL[:30])
    scan = LogScan(str(path), rules())
    scan.read(to_end=False)
    assert causes(scan) == []
    with path.open("ab") as file:
        file.write(ILLEGAL[30:])
    scan.read(to_end=False)
    assert [hit.line for hit in scan.seen()[0].hits] == [2]
    scan.read(to_end=False)
    assert scan.lines == 2


@pytest.mark.parametrize("way", ["cut", "replaced", "copied and cut"])
def test_a_file_that_is_another_one_is_read_from_its_beginning(tmp_path: Path, way: str) -> None:
    path = tmp_path / "log"
    scan = scanned(path, step(1) + ILLEGAL)
    if way == "replaced":
        path.rename(tmp_path / "log.1")
    path.write_bytes(LOST if way != "copied and cut" else LOST * 9)
    scan.read()
    assert causes(scan) == ["gpu_lost"]
    assert scan.seen()[0].hits[0].line == 1


def test_a_last_line_without_an_end_counts_when_nobody_writes_any_more(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(LOST.strip())
    scan = LogScan(str(path), rules())
    scan.read(to_end=False)
    assert causes(scan) == []
    scan.read()
    assert causes(scan) == ["gpu_lost"]


def test_lines_of_any_length_take_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.write(ILLEGAL)
        for _ in range(100):
            file.write(b"x" * CHUNK_BYTES)
        file.write(b"\n" + LOST)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    scan = LogScan(str(path), rules())
    scan.read()
    assert causes(scan) == ["device_fault", "gpu_lost"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40 << 10  # KiB


def test_bars_that_are_drawn_over_each_other_are_lines_of_their_own(tmp_path: Path) -> None:
    bar = b" 1%%| | %d/900 [00:01<00:09, 1.8it/s]"
    text = b"\r".join(bar % number for number in range(5)) + b"\r" + LOST
    scan = scanned(tmp_path / "log", text)
    assert causes(scan) == ["gpu_lost"]
    assert scan.seen()[0].hits[0].quote == LOST.decode().strip()
    assert scan.steps >= 2


def test_a_bounded_number_of_lines_is_kept_and_all_ranks(tmp_path: Path) -> None:
    text = b"".join(b"[rank%d]: ncclRemoteError: A call failed\n" % rank for rank in range(300))
    (seen,) = scanned(tmp_path / "log", text).seen()
    assert len(seen.hits) == MOST_HITS
    assert seen.ranks == set(range(300))


def test_errors_without_end_are_looked_at_until_it_is_known_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_module, "_MOST_RANKS_READ", 40)
    monkeypatch.setattr(scan_module, "CHUNK_BYTES", 1 << 10)
    looked_at: list[str] = []
    fit = Rules.fit

    def counted(self: Rules, line: str, *args: Any, **options: Any) -> Fit | None:
        looked_at.append(line)
        return fit(self, line, *args, **options)

    monkeypatch.setattr(Rules, "fit", counted)
    words = ["".join(word) for word in itertools.product("vwxyz", repeat=5)][:2000]
    flood = [f"[rank{i % 64}]: RuntimeError: {word}" for i, word in enumerate(words)]
    last = ["Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)", LOST.decode()]
    scan = scanned(tmp_path / "log", "\n".join([*flood, *last]).encode())
    assert {*causes(scan)} == {"program_error", "collective_timeout", "gpu_lost"}
    assert len(looked_at) < 200
    assert scan.lines == 2002


def test_errors_after_a_step_are_looked_at_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_module, "_MOST_RANKS_READ", 40)
    flood = b"".join(b"RuntimeError: bad %s\n" % (b"xyz" * n) for n in range(200))
    scan = scanned(tmp_path / "log", flood + step(1) + step(2) + step(3) + flood)
    (seen,) = scan.seen()
    assert [hit.line for hit in seen.hits] == [204 + n for n in range(MOST_HITS)]


def test_an_exception_that_is_ignored_is_no_failure(tmp_path: Path) -> None:
    text = (
        b"Exception ignored in: <function Pool.__del__>\n"
        b"Traceback (most recent call last):\n  File 'x', line 1\nValueError: Pool is closed\n"
    )
    assert causes(scanned(tmp_path / "log", text)) == []


def test_an_exception_that_is_ignored_may_have_no_traceback(tmp_path: Path) -> None:
    text = b"Exception ignored in: <function Pool.__del__>\nValueError: Pool is closed\n"
    assert causes(scanned(tmp_path / "log", text)) == []
    assert causes(scanned(tmp_path / "log", text + b"ValueError: x must be 3\n")) == [
        "program_error"
    ]


def test_a_block_of_ray_names_the_node(tmp_path: Path) -> None:
    text = (
        b"ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
        b"  pid: 16424\n  ip: 10.0.0.9\n"
        b"The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR\n"
    )
    hits = [hit for seen in scanned(tmp_path / "log", text).seen() for hit in seen.hits]
    assert {node for hit in hits for node in hit.nodes} == {"10.0.0.9"}


def test_ranks_nodes_and_their_number_are_learned(tmp_path: Path) -> None:
    text = b"3: node-12:411:977 [3] NCCL INFO comm 0x1 rank 3 nranks 16 busId 5e000\n" + ILLEGAL
    scan = scanned(tmp_path / "log", text)
    assert scan.ranks == {3, 5}
    assert scan.node_of == {3: "node-12"}
    assert scan.world_size == 16


def test_a_block_of_torchrun_says_who_it_is_about(tmp_path: Path) -> None:
    text = (
        b"[1]:\n  time      : 2026-11-22_10:00:00\n  host      : node-12\n"
        b"  rank      : 3 (local_rank: 3)\n  exitcode  : -11 (pid: 4711)\n"
    )
    (seen,) = scanned(tmp_path / "log", text).seen()
    assert (seen.cause, seen.ranks, seen.nodes) == ("native_crash", {3}, ["node-12"])


@pytest.mark.parametrize("name", ["missing", "."])
def test_a_file_that_cannot_be_read_is_said(tmp_path: Path, name: str) -> None:
    scan = LogScan(str(tmp_path / name), rules())
    scan.read()
    assert scan.error
    assert causes(scan) == []


@given(st.lists(st.one_of(st.binary(max_size=80), st.sampled_from([LOST, ILLEGAL, b"\r", b"\0"]))))
@settings(max_examples=50, deadline=None)
def test_any_bytes_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]
) -> None:
    scan = scanned(tmp_path_factory.mktemp("any") / "log", b"".join(parts))
    for seen in scan.seen():
        assert all(hit.quote.isprintable() for hit in seen.hits)
