"""Words that no rule knows are read by the thing and the trouble that they tell of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from undaunted.attribution.logs.analyse import read_logs
from undaunted.attribution.logs.general import of_exception, of_line

if TYPE_CHECKING:
    from pathlib import Path

FRAME = '  File "{}", line 7, in {}'


@pytest.mark.parametrize(
    ("kind", "message", "cause"),
    [
        ("acme.RingTimeout", "allreduce of bucket 3 did not come back", "collective_timeout"),
        ("RuntimeError", "barrier: deadline of 600 s is over", "collective_timeout"),
        ("RuntimeError", "ring lost its communicator: rank 3 has died", "peer_lost"),
        ("MeetError", "cannot connect to the coordinator of the rendezvous", "rendezvous_failed"),
        ("RuntimeError", "acme: fence of GPU 3 timed out", "device_fault"),
        ("AcmeDeviceError", "the kernel was aborted", "device_fault"),
        ("PoolError", "no HBM left: failed to allocate 3 GiB", "gpu_out_of_memory"),
        ("RuntimeError", "the gradient norm is not finite", "not_finite"),
        ("FloatingPointError", "loss is NaN at step 7", "not_finite"),
        ("ValueError", "loss diverged to inf in layer 3", "not_finite"),
        ("ShardError", "the checkpoint is truncated", "checkpoint_mismatch"),
        ("ImageError", "cannot identify what is in cat.jpg", "data_error"),
        ("OSError", "quota of disk space is used up", "quota_exceeded"),
        ("HubError", "we couldn't connect to the hub", "network_error"),
        ("ActorGone", "its actor process has died", "terminated"),
        ("WorkerDied", "child 12 ended with status -11", "native_crash"),
        ("WorkerDied", "child 12 was ended by signal 9", "killed"),
    ],
)
def test_an_exception_of_unknown_words(kind: str, message: str, cause: str) -> None:
    found = of_exception(kind, message, "")
    assert found is not None
    assert found.cause == cause
    assert found.confidence < 0.6
    assert not found.certain


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("RuntimeError", "the sizes of a and b differ"),
        ("TypeError", "broadcast() got a timeout that is no number"),
        ("KeyError", "'gpu'"),
        ("ImportError", "no module for cuda: error in setup"),
        ("RuntimeError", "extension for CUDA failed to build"),
        ("RuntimeError", "expected all tensors on the same device, error in argument 3"),
        ("AssertionError", "timeout of the barrier must be positive"),
        ("ConfigError", "timeout of the store"),
    ],
)
def test_an_exception_of_the_program_stays_one(kind: str, message: str) -> None:
    assert of_exception(kind, message, "") is None


@pytest.mark.parametrize(
    ("file", "function", "message", "cause"),
    [
        ("/venv/requests/adapters.py", "send", "what was that", "network_error"),
        ("/venv/requests/adapters.py", "send", "404 of model/x", None),
        ("/venv/torch/serialization.py", "load", "what was that", "checkpoint_mismatch"),
        ("/venv/torch/serialization.py", "_save", "what was that", "storage_error"),
        ("/venv/torch/distributed/rendezvous.py", "_env", "what was that", "rendezvous_failed"),
        ("/venv/PIL/Image.py", "open", "what was that", "data_error"),
        ("/opt/job/train.py", "step", "what was that", None),
    ],
)
def test_innermost_frames_say_what_a_library_does(
    file: str, function: str, message: str, cause: str | None
) -> None:
    traceback = "\n".join([FRAME.format("/opt/job/train.py", "main"), FRAME.format(file, function)])
    found = of_exception("OddError", message, traceback)
    assert (found and found.cause) == cause


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("rank 3 stopped with status 139", "native_crash"),
        ("worker 1 of rank 5 died, code = 1", "terminated"),
        ("ERROR 12:00:01 the all-reduce has been stuck for 900 s", "collective_timeout"),
        ("ERROR 12:00:01 something odd happened", "program_error"),
        ("WARNING: something odd happened", None),
        ("INFO: timeout of the barrier is 600 s, retried after an error", None),
        ("step 40 loss 1.9 lr 0.02", None),
        ("all reduce took 3 ms", None),
        ("image 12.jpg is corrupted, skipping it", None),
        ("ERROR image 12.jpg is corrupted, using another one", None),
        ("Grad norm is nan, skipping this batch", None),
        ("INFO: unable to load the optimizer from checkpoint 7, exiting", "checkpoint_mismatch"),
        ("INFO: unable to load the optimizer from checkpoint 7", None),
        ("./run.sh: ligne 6:  931 Erreur de segmentation  (core dumped) python a.py", None),
        ("./run.sh: ligne 6:  931 Erreur de segmentation     (core dumped) python", "native_crash"),
        ("./run.sh: Zeile 6:  931 Getötet                 python train.py", "killed"),
    ],
)
def test_a_line_of_unknown_words(line: str, cause: str | None) -> None:
    found = of_line(line)
    assert (found and found.cause) == cause
    assert found is None or found.confidence < 0.5


def test_the_rank_that_a_line_on_an_end_names() -> None:
    found = of_line("rank 3 stopped with status 139")
    assert found is not None
    assert found.ranks == (3,)


def cause_of(path: Path, *lines: str) -> str | None:
    path.write_text("\n".join(lines) + "\n")
    findings = read_logs([path]).findings
    return findings[0].cause if findings else None


STEPS = [f"step {n} loss 1.9 lr 0.02" for n in range(30, 34)]


def test_last_words_count_only_where_nothing_else_is_known(tmp_path: Path) -> None:
    stuck = "E acme: ring of the all-reduce has been stuck for 900 s, no error code"
    assert cause_of(tmp_path / "a", *STEPS, stuck) == "collective_timeout"
    assert cause_of(tmp_path / "b", stuck, *STEPS) is None
    known = "RuntimeError: CUDA error: an illegal memory access was encountered"
    assert cause_of(tmp_path / "c", *STEPS, known, stuck) == "device_fault"
    far = [f"line {n}" for n in range(100)]
    assert cause_of(tmp_path / "d", *STEPS, stuck, *far) is None


def traceback(*frames: str, last: str) -> list[str]:
    return ["Traceback (most recent call last):", *frames, last]


JOINED = ["", "The above exception was the direct cause of the following exception:", ""]
OWN = [FRAME.format("/opt/job/train.py", "step"), "    go()"]


def test_an_exception_that_says_less_than_the_one_it_was_raised_for_is_left_out(
    tmp_path: Path,
) -> None:
    first = traceback(*OWN, last="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2")
    second = traceback(*OWN, last="RuntimeError: step 7 was not done")
    assert cause_of(tmp_path / "a", *STEPS, *first, *JOINED, *second) == "gpu_out_of_memory"


def test_a_log_that_ends_in_a_traceback(tmp_path: Path) -> None:
    cut = traceback(*OWN, last="    batch = next(batches)")
    assert cause_of(tmp_path / "a", *STEPS, *cut) == "program_error"
    assert cause_of(tmp_path / "b", *cut, *STEPS) is None
    of_image = traceback(*OWN, FRAME.format("/venv/PIL/Image.py", "open"), last="    go()")
    assert cause_of(tmp_path / "c", *STEPS, *of_image) == "data_error"


def test_what_fails_in_a_data_set_is_its_file(tmp_path: Path) -> None:
    frame = FRAME.format("/opt/job/data.py", "__getitem__")
    said = traceback(*OWN, frame, "    pickle.load(file)", last="EOFError: Ran out of input")
    assert cause_of(tmp_path / "log", *STEPS, *said) == "data_error"


def test_a_socket_of_http_is_no_peer(tmp_path: Path) -> None:
    frame = FRAME.format("/venv/urllib3/connection.py", "_new_conn")
    said = traceback(*OWN, frame, last="socket.gaierror: [Errno -2] Name or service not known")
    assert cause_of(tmp_path / "log", *STEPS, *said) == "network_error"


def test_that_something_failed_says_less_than_that_an_actor_died(tmp_path: Path) -> None:
    hydra = "Error executing job with overrides: ['a=1']"
    said = traceback(*OWN, last="ray.exceptions.ActorDiedError: The actor died unexpectedly.")
    assert cause_of(tmp_path / "log", *STEPS, hydra, *said) == "terminated"
