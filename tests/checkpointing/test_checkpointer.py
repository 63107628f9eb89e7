"""`Checkpointer` in one process: what is saved is what is loaded, whatever happens in between."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from tests.checkpointing.async_ckpt.jobs import writer_pid
from undaunted.base.process import children
from undaunted.checkpointing import (
    Checkpointer,
    NoCheckpointError,
    RandomState,
    SaveError,
    StructureError,
    load_dcp,
)
from undaunted.checkpointing.files.folder import FolderStorage
from undaunted.checkpointing.memory import copy
from undaunted.checkpointing.snapshot import Taker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from undaunted.checkpointing.format.names import Attempt

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*torch.distributed is")]


@pytest.fixture
def checkpoints(tmp_path: Path) -> Iterator[Checkpointer]:
    with Checkpointer(tmp_path / "all", keep=2, timeout=60) as one:
        yield one


def trained(seed: int, steps: int = 2) -> dict[str, Any]:
    """A model and an optimizer that have made some steps."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
    return {"model": model, "optimizer": optimizer, "epoch": seed, "history": [1.5, "text", None]}


def parameters(state: dict[str, Any]) -> list[torch.Tensor]:
    moments = [
        value for of in state["optimizer"].state_dict()["state"].values() for value in of.values()
    ]
    return [*state["model"].state_dict().values(), *moments]


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    pairs = list(zip(parameters(one), parameters(other), strict=True))
    return bool(pairs) and all(torch.equal(a, b) for a, b in pairs)


def test_what_is_loaded_is_what_was_saved(checkpoints: Checkpointer) -> None:
    saved = trained(1)
    checkpoints.save(10, saved)
    fresh = trained(2, steps=0)  # its optimizer has no state yet
    fresh["history"] = []
    assert checkpoints.load(fresh) == 10
    assert same(saved, fresh)
    assert fresh["epoch"] == 1
    assert fresh["history"] == [1.5, "text", None]


def test_what_changes_after_the_call_is_not_saved(checkpoints: Checkpointer) -> None:
    numbers = torch.arange(100_000.0)
    state = {"numbers": numbers, "view": numbers[10:20], "list": [1, 2]}
    checkpoints.save(1, state)
    numbers.fill_(-1)
    state["list"].append(3)  # type: ignore[union-attr]
    checkpoints.wait()
    found = {"numbers": torch.zeros(100_000), "view": torch.zeros(10), "list": []}
    checkpoints.load(found)
    assert torch.equal(found["numbers"], torch.arange(100_000.0))  # type: ignore[arg-type]
    assert torch.equal(found["view"], torch.arange(10.0, 20.0))  # type: ignore[arg-type]
    assert found["list"] == [1, 2]


def test_torch_reads_what_was_saved(checkpoints: Checkpointer, tmp_path: Path) -> None:
    checkpoints.save(3, {"weights": torch.arange(5)})
    checkpoints.wait()
    found = {"weights": torch.zeros(5, dtype=torch.int64)}
    dcp.load(found, checkpoint_id=tmp_path / "all" / "step-00000003")
    assert found["weights"].tolist() == [0, 1, 2, 3, 4]


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, keep=2, keep_every=100, timeout=60) as checkpoints:
        for step in (100, 110, 120, 130):
            checkpoints.save(step, {"x": torch.ones(2)})
            checkpoints.wait()
        assert checkpoints.latest() == 130
    kept = sorted(path.name for path in tmp_path.glob("step-*"))
    assert kept == ["step-00000100", "step-00000120", "step-00000130"]


def test_a_step_can_be_saved_again(checkpoints: Checkpointer) -> None:
    for value in (1.0, 2.0):
        checkpoints.save(5, {"x": torch.full((3,), value)})
    state = {"x": torch.zeros(3)}
    assert checkpoints.load(state) == 5
    assert state["x"].tolist() == [2.0] * 3


def test_a_state_may_grow(checkpoints: Checkpointer) -> None:
    checkpoints.save(1, {"x": torch.ones(2)})
    checkpoints.save(2, {"x": torch.ones(2), "y": torch.full((1 << 20,), 7.0), "text": "a" * 5000})
    state: dict[str, Any] = {"x": torch.zeros(2), "y": torch.zeros(1 << 20), "text": ""}
    assert checkpoints.load(state) == 2
    assert float(state["y"].sum()) == 7.0 * (1 << 20)
    assert state["text"] == "a" * 5000


def test_without_a_checkpoint_nothing_is_loaded(checkpoints: Checkpointer) -> None:
    state = {"x": torch.ones(1)}
    assert checkpoints.load(state) is None
    assert checkpoints.latest() is None
    assert state["x"].tolist() == [1.0]
    with pytest.raises(NoCheckpointError, match="no checkpoint of step 4"):
        checkpoints.load(state, step=4)


def test_the_folder_of_one_checkpoint_is_no_place_for_others(
    checkpoints: Checkpointer, tmp_path: Path
) -> None:
    checkpoints.save(20, {"a": 1})
    checkpoints.wait()
    (one,) = tmp_path.rglob("step-00000020")
    with pytest.raises(ValueError, match="is one checkpoint: give the folder it is in"):
        Checkpointer(one)


def test_an_older_step_can_be_asked_for(checkpoints: Checkpointer) -> None:
    for step in (1, 2):
        checkpoints.save(step, {"x": torch.tensor([step])})
    state = {"x": torch.zeros(1, dtype=torch.int64)}
    assert checkpoints.load(state, step=1) == 1
    assert state["x"].tolist() == [1]


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_a_damaged_checkpoint_is_passed_over(
    checkpoints: Checkpointer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (1, 2):
        checkpoints.save(step, {"weights": torch.full((1000,), float(step))})
    checkpoints.wait()
    flip(tmp_path / "all" / "step-00000002" / "__0_0.distcp", 500)
    state = {"weights": torch.zeros(1000)}
    assert checkpoints.load(state) == 1
    assert state["weights"].tolist() == [1.0] * 1000
    assert "step 2 cannot be used" in caplog.text
    assert "weights" in caplog.text
    with pytest.raises(NoCheckpointError, match="weights"):
        checkpoints.load(state, step=2)


@pytest.mark.parametrize("name", ["undaunted.json", ".metadata", "__0_0.distcp"])
@pytest.mark.parametrize("harm", ["remove", "truncate", "empty"])
def test_a_checkpoint_that_lacks_something_is_passed_over(
    checkpoints: Checkpointer, tmp_path: Path, name: str, harm: str
) -> None:
    for step in (1, 2):
        checkpoints.save(step, {"x": torch.full((10,), float(step))})
    checkpoints.wait()
    path = tmp_path / "all" / "step-00000002" / name
    if harm == "remove":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: 0 if harm == "empty" else -2])
    state = {"x": torch.zeros(10)}
    assert checkpoints.load(state) == 1
    assert state["x"].tolist() == [1.0] * 10


def test_a_state_that_does_not_fit_says_what_is_missing(checkpoints: Checkpointer) -> None:
    checkpoints.save(1, {"x": torch.ones(2)})
    with pytest.raises(StructureError, match="other"):
        checkpoints.load({"x": torch.ones(2), "other": torch.ones(1)})


def test_a_writer_that_is_killed_costs_one_save(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Checkpointer(tmp_path, timeout=60, bandwidth=1e6) as checkpoints:
        checkpoints.save(1, {"x": torch.ones(4 << 20)})
        os.kill(writer_pid(), signal.SIGKILL)
        with pytest.raises(SaveError, match="SIGKILL"):
            checkpoints.wait()
        checkpoints.save(2, {"x": torch.ones(4)})
        checkpoints.wait()
        assert checkpoints.latest() == 2
    assert "step 1 was not saved" in caplog.text


def test_a_failed_save_is_retried_or_passed_over(tmp_path: Path) -> None:
    for on_failure in ("retry", "warn"):
        with Checkpointer(
            tmp_path / on_failure,
            on_failure=on_failure,  # type: ignore[arg-type]
            timeout=60,
            bandwidth=1e6,
        ) as checkpoints:
            checkpoints.save(1, {"x": torch.ones(1 << 19)})
            os.kill(writer_pid(), signal.SIGKILL)
            checkpoints.wait()
            assert checkpoints.latest() == (1 if on_failure == "retry" else None)


def test_a_place_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises((OSError, SaveError), match="file"):
        Checkpointer(blocked, timeout=60)


def test_settings_out_of_range_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep=0"):
        Checkpointer(tmp_path, keep=0)


def test_a_closed_one_says_so(tmp_path: Path) -> None:
    checkpoints = Checkpointer(tmp_path, timeout=60)
    checkpoints.close()
    checkpoints.close()
    with pytest.raises(ValueError, match="closed"):
        checkpoints.save(1, {})


def test_random_generators_go_on_where_they_were(checkpoints: Checkpointer) -> None:
    numpy = pytest.importorskip("numpy")
    checkpoints.save(1, {"random": RandomState()})

    def draw() -> list[float]:
        return [random.random(), float(torch.rand(1)), float(numpy.random.rand())]

    first = draw()
    checkpoints.load({"random": RandomState()})
    assert draw() == first


def test_a_rank_that_was_not_there_keeps_its_generators(checkpoints: Checkpointer) -> None:
    checkpoints.save(1, {"random": RandomState(rank=0)})
    before = torch.get_rng_state()
    assert checkpoints.load({"random": RandomState(rank=5)}) == 1
    assert torch.equal(torch.get_rng_state(), before)


def test_ranks_that_cannot_reach_each_other_yet_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SaveError, match="init_process_group"):
        Checkpointer(tmp_path / "together")
    with Checkpointer(tmp_path / "mine", process_group="alone") as checkpoints:
        checkpoints.save(1, {"x": torch.ones(2)})
        checkpoints.wait()
        state = {"x": torch.zeros(2)}
        load_dcp(state, tmp_path / "mine" / "step-00000001")
    assert state["x"].tolist() == [1, 1]


def test_memory_is_there_before_the_first_save(checkpoints: Checkpointer) -> None:
    state = {"x": torch.ones(1 << 18)}
    checkpoints.warm_up(state)
    arena = checkpoints._pool.lease(0, 60).arena
    assert arena is not None
    checkpoints.save(1, state)
    checkpoints.wait()
    assert checkpoints._pool.lease(0, 60).arena is arena


@pytest.mark.parametrize(("what", "name"), [(b"\0\0\x80?" * 40, "x"), (b"a long text", "text")])
def test_what_is_damaged_in_the_copy_is_not_saved_where_saves_are_certified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: bytes, name: str
) -> None:
    """A number that stays finite is wrong from then on, and nothing else would find it."""
    take = Taker.take

    def take_damaged(self: Taker, step: int, number: int, planned: Any, lease: Any) -> Any:
        staged = take(self, step, number, planned, lease)
        if step in (2, 3):
            lease.arena.memory[bytes(lease.arena.memory).index(what) + 2] ^= 1
        return staged

    monkeypatch.setattr(Taker, "take", take_damaged)
    state = {"x": torch.ones(5000), "y": torch.zeros(3), "text": "a long text" * 9}
    with Checkpointer(tmp_path, keep=None, certify=2, timeout=60) as checkpoints:
        for step in (1, 2, 3, 4):
            checkpoints.save(step, state)
            if step == 2:
                with pytest.raises(SaveError, match=rf"{name} was damaged in the copy in memory"):
                    checkpoints.wait()
    assert sorted(path.name for path in tmp_path.glob("step-*")) == [
        f"step-0000000{step}"
        for step in (1, 3, 4)  # the third one was not looked at
    ]


def test_a_failure_is_told_at_the_next_save(tmp_path: Path) -> None:
    """And not earlier or later on one rank than on another, as it depends on no clock."""
    with Checkpointer(tmp_path, timeout=60, bandwidth=1e6) as checkpoints:
        checkpoints.save(1, {"x": torch.ones(1 << 20)})
        os.kill(writer_pid(), signal.SIGKILL)
        with pytest.raises(SaveError, match="SIGKILL"):
            checkpoints.save(2, {"x": torch.ones(4)})
        checkpoints.save(3, {"x": torch.ones(4)})
        checkpoints.wait()
        assert checkpoints.latest() == 3


def test_after_a_return_to_an_older_step_the_new_branch_is_the_newest(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, keep=2, timeout=60) as checkpoints:
        for step in (10, 20, 30):
            checkpoints.save(step, {"branch": "given up"})
            checkpoints.wait()
    with Checkpointer(tmp_path, keep=2, timeout=60) as checkpoints:
        state = {"branch": ""}
        assert checkpoints.load(state, step=20) == 20
        for step in (21, 22):
            checkpoints.save(step, {"branch": "new"})
        assert checkpoints.load(state) == 22
        assert state == {"branch": "new"}
        assert checkpoints.latest() == 22
    assert sorted(path.name for path in tmp_path.glob("step-*")) == [
        "step-00000021",
        "step-00000022",
    ]


@pytest.mark.parametrize(
    "error", [SystemExit(0), KeyboardInterrupt(), ValueError("mine")], ids=repr
)
def test_leaving_the_block_in_another_way_keeps_what_was_saved(
    tmp_path: Path, error: BaseException
) -> None:
    def train() -> None:
        with Checkpointer(tmp_path, timeout=60, bandwidth=1e7) as checkpoints:
            checkpoints.save(1, {"x": torch.ones(1 << 20)})
            raise error

    with pytest.raises(type(error)):
        train()
    with Checkpointer(tmp_path, timeout=60) as checkpoints:
        assert checkpoints.latest() == 1


@pytest.mark.parametrize(
    ("end", "inside"),
    [
        ("", False),
        ("sys.exit(3)", True),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                ("", True),
                ("sys.exit()", True),
                ("sys.exit(0)", False),
                ("sys.exit(75)", False),
                ("sys.exit(3)", False),
            )
        ),
    ],
)
def test_a_program_that_loses_its_last_checkpoint_fails(
    tmp_path: Path, end: str, inside: bool
) -> None:
    script = f"""
        import atexit, sys, torch
        from undaunted.checkpointing import Checkpointer

        atexit.register(print, "others are called too", flush=True)
        checkpoints = Checkpointer("c", timeout=60)
        open("c/step-00000001", "w").close()  # so that the save fails
        def train():
            checkpoints.save(1, {{"x": torch.ones(3)}})
            {end}
        if {inside}:
            with checkpoints:
                train()
        else:
            train()
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    said = ended.stderr
    if end == "sys.exit(3)" and inside:
        assert ended.returncode == 3, said
    else:
        assert ended.returncode == (1 if inside else 120), said
        assert "last checkpoint was not saved" in said or (inside and not end)
    assert f"{tmp_path}/c/step-00000001" in said
    assert ended.stdout == "others are called too\n"


@pytest.mark.parametrize(
    "closed", ["012", *(pytest.param(each, marks=pytest.mark.slow) for each in ("0", "12"))]
)
def test_standard_streams_may_be_closed(tmp_path: Path, closed: str) -> None:
    script = """
        import torch
        from undaunted.checkpointing import Checkpointer

        with Checkpointer("c", timeout=60) as checkpoints:
            checkpoints.save(1, {"x": torch.ones(3)})
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    redirected = " ".join(f"{number}>&-" for number in closed)
    words = ["sh", "-c", f'exec "$@" {redirected}', "sh", sys.executable, "train.py"]
    assert subprocess.run(words, cwd=tmp_path, timeout=100, check=False).returncode == 0
    assert (tmp_path / "c/step-00000001").is_dir()


@pytest.mark.parametrize("executable", [None, ""])
def test_an_interpreter_that_does_not_know_its_path_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executable: str | None
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    monkeypatch.setattr(sys, "exec_prefix", sys.base_exec_prefix)
    with Checkpointer(tmp_path, timeout=60) as checkpoints:
        checkpoints.save(1, {"x": torch.ones(3)})
        checkpoints.wait()
    monkeypatch.setattr(sys, "exec_prefix", str(tmp_path / "elsewhere"))
    with pytest.raises(SaveError, match=r"sys\.executable"):
        Checkpointer(tmp_path, timeout=60)


def test_a_limit_of_file_sizes_counts_for_the_copy(tmp_path: Path) -> None:
    script = """
        import resource, torch
        from undaunted.checkpointing import Checkpointer, SaveError

        x = torch.ones(4 << 20)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, 8 << 20))
        with Checkpointer("c", timeout=60, on_failure="warn") as checkpoints:
            checkpoints.save(1, {"x": x})
            checkpoints.wait()
            checkpoints.save(2, {"x": x[:10].clone()})
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "the limit of file sizes, which counts for it, is 8388608" in ended.stderr
    assert [path.name for path in (tmp_path / "c").glob("step-*")] == ["step-00000002"]


def test_a_copy_that_the_limit_of_memory_does_not_allow_ends_one_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Allocated, the kernel would kill the rank for it."""
    monkeypatch.setattr("undaunted.base.cgroups.memory_left", lambda: 40 << 20)
    with Checkpointer(tmp_path, timeout=60) as checkpoints:
        checkpoints.save(1, {"x": torch.ones(16 << 20)})
        with pytest.raises(SaveError, match=r"limit of the job's cgroup leaves 41943040"):
            checkpoints.wait()
        checkpoints.save(2, {"x": torch.ones(10)})


def test_nothing_is_said_when_the_interpreter_ends(tmp_path: Path) -> None:
    """What lies in a script's own variables is destroyed when modules are gone."""
    script = """
        import torch
        from undaunted.checkpointing import Checkpointer
        from undaunted.checkpointing.files.direct import DirectReader
        from undaunted.checkpointing.files.living import Living
        from undaunted.checkpointing.memory.arena import Arena
        from undaunted.checkpointing.memory.pool import Pool

        with Checkpointer("closed", timeout=60) as closed:
            closed.save(1, {"x": torch.ones(3)})
        opened = Checkpointer("open", timeout=60)
        opened.save(1, {"x": torch.ones(3)})
        living, pool = Living("."), Pool(1, "leased", "wait")
        living.begin("a0")
        left = [DirectReader("/proc/self/stat"), Arena.create("left", 5000), living]
        lease = pool.lease(1, 1)
        torch.kept = left  # and what a module keeps
    """
    words = [sys.executable, "-W", "error::ResourceWarning", "-c", textwrap.dedent(script)]
    ended = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.slow
def test_a_write_that_makes_progress_may_take_longer_than_the_timeout(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, timeout=4, bandwidth=8e6) as checkpoints:
        checkpoints.save(1, {"x": torch.ones(12 << 20)})
        checkpoints.save(2, {"x": torch.ones(10)})
    assert sorted(path.name for path in tmp_path.glob("step-*")) == [
        "step-00000001",
        "step-00000002",
    ]


def test_a_step_out_of_range_is_refused(checkpoints: Checkpointer) -> None:
    with pytest.raises(ValueError, match="step=-1"):
        checkpoints.save(-1, {"x": torch.ones(1)})


def test_integers_of_other_packages_are_steps(checkpoints: Checkpointer) -> None:
    numpy = pytest.importorskip("numpy")
    checkpoints.save(numpy.int64(7), {"x": torch.ones(1)})
    checkpoints.save(torch.tensor(8), {"x": torch.ones(1)})  # type: ignore[arg-type]
    checkpoints.wait()
    assert checkpoints.latest() == 8


def test_whatever_goes_wrong_while_saving_ends_one_save(
    checkpoints: Checkpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(checkpoints._saves, "_attempt", lambda *_: 1 / 0)
        checkpoints.save(1, {"x": torch.ones(1)})
        with pytest.raises(SaveError, match="ZeroDivisionError"):
            checkpoints.wait()
    checkpoints.save(2, {"x": torch.ones(1)})
    checkpoints.wait()
    assert checkpoints.latest() == 2


def test_a_fork_is_told_that_it_is_one(
    checkpoints: Checkpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_pid", os.getpid() + 1)
    with pytest.raises(RuntimeError, match="of which this one is a fork"):
        checkpoints.save(1, {"x": torch.ones(1)})
    checkpoints.close()  # does nothing, as the other process needs it
    monkeypatch.undo()
    checkpoints.save(1, {"x": torch.ones(1)})


def test_an_abort_while_the_state_is_copied_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpointer(tmp_path, timeout=60)
    copy_each = copy.copy_each

    def aborted_before(*args: Any) -> None:
        other = threading.Thread(target=checkpoints.abort)
        other.start()
        other.join()
        copy_each(*args)

    monkeypatch.setattr(copy, "copy_each", aborted_before)
    with pytest.raises(SaveError, match="aborted"):
        checkpoints.save(1, {"x": torch.ones(1 << 20)})
    assert list(tmp_path.glob("step-*")) == []


def test_after_an_abort_nothing_goes_on(tmp_path: Path) -> None:
    """Neither an attempt more, nor what waits for its turn."""
    checkpoints = Checkpointer(tmp_path, timeout=60, bandwidth=1e5, on_failure="retry", slots=2)
    for step in (1, 2):
        checkpoints.save(step, {"x": torch.ones(1 << 20)})
    for step in (1, 2):  # 42 s of the bandwidth each
        assert not (tmp_path / f"step-{step:08}").exists()
    checkpoints.abort()
    assert not checkpoints._saves._thread.is_alive()
    assert not any(
        b"writer.program" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children()
    )
    assert list(tmp_path.glob("step-*")) == []


@pytest.mark.parametrize("call", ["wait", "close"])
def test_an_abort_ends_the_wait_of_another_thread(tmp_path: Path, call: str) -> None:
    checkpoints = Checkpointer(tmp_path, timeout=60, bandwidth=1e5)
    checkpoints.save(1, {"x": torch.ones(1 << 22)})  # blocks after the first wait for the bandwidth
    aborting = threading.Timer(0.05, checkpoints.abort)
    aborting.start()
    with pytest.raises(SaveError, match=r"aborted|given up"):
        getattr(checkpoints, call)()
    aborting.join()
    assert not checkpoints._saves._thread.is_alive()
    assert list(tmp_path.glob("step-*")) == []


def test_a_commit_that_an_abort_overtakes_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpointer(tmp_path, timeout=60)
    checkpoints.save(1, {"x": torch.ones(1)})
    checkpoints.wait()
    before = (tmp_path / "step-00000001").stat().st_ino
    committing, aborted = threading.Event(), threading.Event()
    put_aside = FolderStorage._put_aside

    def pause(storage: FolderStorage, attempt: Attempt) -> str:
        former = put_aside(storage, attempt)
        committing.set()
        aborted.wait(60)
        return former

    monkeypatch.setattr(FolderStorage, "_put_aside", pause)
    checkpoints.save(1, {"x": torch.zeros(1)})
    assert committing.wait(60)
    abort = checkpoints._writer.abort
    monkeypatch.setattr(checkpoints._writer, "abort", lambda: (aborted.set(), abort()))
    checkpoints.abort()
    assert not checkpoints._saves._thread.is_alive()
    assert (tmp_path / "step-00000001").stat().st_ino == before


@pytest.mark.parametrize(("wanted", "folder", "file"), [("", 0o700, 0o600), ("1", 0o750, 0o640)])
def test_who_may_read_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str, folder: int, file: int
) -> None:
    monkeypatch.setenv("UNDAUNTED_CHECKPOINT_UMASK", wanted)
    before = os.umask(0o027)
    try:
        with Checkpointer(tmp_path / "made" / "all", timeout=60) as checkpoints:
            checkpoints.save(1, {"x": torch.ones(1000)})
    finally:
        os.umask(before)
    step = tmp_path / "made" / "all" / "step-00000001"
    assert {path.stat().st_mode & 0o777 for path in (step, *step.parents[:2])} == {folder}
    names = {path.name for path in step.iterdir()}
    assert names == {"__0_0.distcp", ".metadata", "undaunted.json"}
    assert {path.stat().st_mode & 0o777 for path in step.iterdir()} == {file}


def run_without_rights(tmp_path: Path, script: str) -> str:
    """Run a program that is not root, or a root that may no more than others."""
    given = []
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("needs setpriv to give up the rights of root")
        given = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    command = [*given, sys.executable, "-c", textwrap.dedent(script)]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout + ended.stderr


def test_a_folder_that_may_only_be_read_is_loaded_from(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "c", timeout=60) as checkpoints:
        checkpoints.save(1, {"x": torch.ones(3)})
    before = sorted(os.listdir(tmp_path / "c"))
    (tmp_path / "c").chmod(0o555)
    (tmp_path / "empty").mkdir(0o555)
    try:
        said = run_without_rights(
            tmp_path,
            """
            import torch
            from undaunted.checkpointing import Checkpointer, SaveError

            x = torch.zeros(3)
            with Checkpointer("c", timeout=60) as checkpoints:
                print("loaded", checkpoints.load({"x": x}), x.tolist())
                for refused in (lambda: checkpoints.save(2, {"x": x}),
                                lambda: checkpoints.warm_up({"x": x})):
                    try:
                        refused()
                    except SaveError as error:
                        print("refused", error)
            with Checkpointer("c", timeout=60, on_failure="warn") as checkpoints:
                checkpoints.save(2, {"x": x})
            try:
                Checkpointer("empty", timeout=60)
            except SaveError as error:
                print("empty", error)
            """,
        )
    finally:
        (tmp_path / "c").chmod(0o755)
    assert "loaded 1 [1.0, 1.0, 1.0]" in said
    assert said.count("refused nothing can be saved to") == 2
    assert "the checkpoint of step 2 was not saved" in said
    assert f"empty PermissionError: [Errno 13] Permission denied: '{tmp_path}/empty/" in said
    assert sorted(os.listdir(tmp_path / "c")) == before


def test_a_full_disk_is_loaded_from_and_saved_to_once_there_is_room(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, timeout=60) as checkpoints:
        checkpoints.save(1, {"x": torch.ones(3)})

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "there")

    x = torch.zeros(3)
    with pytest.MonkeyPatch.context() as full:
        full.setattr("undaunted.checkpointing.files.living.Living.begin", no_room)
        checkpoints = Checkpointer(tmp_path, timeout=60)
        assert checkpoints.load({"x": x}) == 1
        assert x.tolist() == [1.0, 1.0, 1.0]
        with pytest.raises(SaveError, match="free space there"):
            checkpoints.save(2, {"x": x})
    checkpoints.save(2, {"x": x})
    checkpoints.close()
    with Checkpointer(tmp_path, timeout=60) as checkpoints:
        assert checkpoints.load({"x": x}) == 2


def test_another_program_leaves_a_session_whose_folder_is_copied(tmp_path: Path) -> None:
    """Reading the file of a session, as a copy of the folder does, does not end its lock."""
    folder = tmp_path / "c"
    look = (
        "from undaunted.checkpointing import Checkpointer\n"
        "with Checkpointer('c', timeout=60) as checkpoints: print(checkpoints.latest())"
    )
    with Checkpointer(folder, timeout=60) as checkpoints:
        checkpoints.save(1, {"x": torch.ones(3)})
        checkpoints.wait()
        (session,) = (name for name in os.listdir(folder) if name.startswith(".session-"))
        under_way = folder / f".step-00000002.{session.removeprefix('.session-')}-20"
        under_way.mkdir()
        shutil.copytree(folder, tmp_path / "copied")
        command = [sys.executable, "-c", look]
        said = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True
        )
        assert said.stdout == "1\n"
        assert "another job" in said.stderr
        assert under_way.is_dir()
        assert (folder / session).is_file()


SAVER = """
import sys
import torch
from undaunted.checkpointing import Checkpointer

with Checkpointer("c", timeout=60) as checkpoints:
    checkpoints.save(1, {"x": torch.ones(3)})
    checkpoints.wait()
    print("saved", flush=True)
    sys.stdin.read()
    checkpoints.save(3, {"x": torch.ones(3)})
"""


def test_of_two_jobs_in_a_folder_only_the_one_that_saves_first_can_save(tmp_path: Path) -> None:
    """The other would delete and replace its checkpoints."""
    with subprocess.Popen(
        [sys.executable, "-c", SAVER],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as first:
        assert first.stdin is not None
        assert first.stdout is not None
        assert first.stdout.readline() == "saved\n"
        with Checkpointer(tmp_path / "c", timeout=60, keep=1) as checkpoints:
            checkpoints.save(2, {"x": torch.zeros(3)})
            with pytest.raises(SaveError, match=rf"another job .*, pid {first.pid} on "):
                checkpoints.wait()
            assert checkpoints.latest() == 1
            first.stdin.close()
            assert first.wait(60) == 0
            assert checkpoints.latest() == 3
            checkpoints.save(4, {"x": torch.zeros(3)})
            checkpoints.wait()
            assert checkpoints.latest() == 4


def test_what_cannot_be_removed_keeps_nobody_from_starting(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "c", timeout=60) as checkpoints:
        checkpoints.save(1, {"x": torch.ones(3)})
    left = tmp_path / "c/.step-00000002.deleted-0123456789abcdef"
    (left / "upload").mkdir(parents=True)
    (left / "upload/state").touch()
    (left / "upload").chmod(0o500)
    try:
        said = run_without_rights(
            tmp_path,
            """
            import torch
            from undaunted.checkpointing import Checkpointer

            with Checkpointer("c", timeout=60) as checkpoints:
                print("loaded", checkpoints.load({"x": torch.zeros(3)}))
            """,
        )
    finally:
        (left / "upload").chmod(0o700)
    assert "loaded 1" in said
    assert f"'{left}/upload" in said  # or what is in it, by the version of Python


@pytest.mark.parametrize("refused", ["folders", "open files"])
def test_a_mounted_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    """Those of gcsfuse rename no folders, and no files that are open."""
    rename = os.rename

    def fail(one: str, other: str) -> None:
        is_open = any(
            os.path.realpath(f"/proc/self/fd/{fd}") == os.path.realpath(one)
            for fd in os.listdir("/proc/self/fd")
        )
        if refused == "folders" and Path(one).is_dir():
            raise OSError(errno.EMFILE, "Too many open files", one, None, other)
        if refused == "open files" and is_open:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported", one, None, other)
        rename(one, other)

    monkeypatch.setattr(os, "rename", fail)
    if refused == "folders":
        with pytest.raises(SaveError, match=r"cannot rename folders.*gs://bucket"):
            Checkpointer(tmp_path / "c", timeout=60)
    else:
        with Checkpointer(tmp_path / "c", timeout=60) as checkpoints:
            checkpoints.save(1, {"x": torch.ones(1)})
    assert os.listdir(tmp_path / "c") == (["step-00000001"] if refused == "open files" else [])
