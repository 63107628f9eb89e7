"""`undaunted chaos` with real scripts: sound ones are green, each bug is named."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.launcher import wait_until_gone
from undaunted.base import process
from undaunted.chaos.nemesis import stage
from undaunted.chaos.nemesis.helper import NotPossibleError
from undaunted.chaos.nemesis.small_disk import SmallDisk

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.torch,
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("no_compiler"),
]

SCRIPT = str(Path(__file__).parent / "chaos_scripts" / "train.py")
OPINION = str(Path(SCRIPT).parent / "opinion.py")
CHECKPOINTS = str(Path(SCRIPT).parent / "checkpoints.py")
SAMPLER = str(Path(SCRIPT).parent / "sampler.py")
DATA = str(Path(SCRIPT).parent / "data.py")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TWO = ("--nproc-per-node", "2")
DEADLINE_S = 380.0
slow = partial(pytest.param, marks=pytest.mark.slow)


@pytest.fixture(autouse=True)
def _needs_torch() -> None:
    pytest.importorskip("torch")


@dataclass(frozen=True)
class Ended:
    """What a chaos run came to; ``result`` is {} if there is none."""

    code: int
    text: str
    result: dict[str, Any]

    @property
    def colours(self) -> dict[str, str]:
        return {verdict["fault"]["id"]: verdict["colour"] for verdict in self.result["verdicts"]}

    @property
    def reasons(self) -> set[str]:
        """Keys of findings that are more than notes."""
        findings = [one for verdict in self.result["verdicts"] for one in verdict["findings"]]
        return {finding["key"] for finding in findings if finding["severity"] != "note"}


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "undaunted.cli.main", "chaos", *words]


def environment() -> dict[str, str]:
    ours = ("PET_", "UNDAUNTED")
    return {name: text for name, text in os.environ.items() if not name.startswith(ours)}


def chaos(tmp_path: Path, *words: str) -> Ended:
    done = subprocess.run(
        command("--dir", "chaos", "--json", *words),
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    result = json.loads(done.stdout) if done.stdout else {}
    return Ended(done.returncode, f"{done.stdout}\n{done.stderr}", result)


# --- scripts that survive -------------------------------------------------------------------------


@pytest.mark.slow
def test_the_demo_survives_six_kinds_of_faults(tmp_path: Path) -> None:
    script = str(EXAMPLES / "char_lm" / "train.py")

    words = ("--steps", "40", "--checkpoint-every", "5", "--dir", "{dir}/checkpoints")
    ended = chaos(tmp_path, *TWO, "--per-run", "2", script, *words)

    assert set(ended.colours.values()) == {"green"}, ended.text
    assert len(ended.colours) == 6
    assert ended.code == 0
    assert all(verdict["identical_from"] is not None for verdict in ended.result["verdicts"])


@pytest.mark.slow
def test_the_script_without_a_bug_is_sound(tmp_path: Path) -> None:
    kinds = "kill,torn-write,sigterm,exception,nan,corrupt-checkpoint"

    ended = chaos(
        tmp_path, *TWO, "--faults", kinds, "--per-run", "2", "--seed", "3", SCRIPT, "--dir", "{dir}"
    )

    assert "red" not in set(ended.colours.values()), ended.text
    assert ended.code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "words"),
    [
        ("inprocess/advanced.py", ("--in-dir", "--faults", "exception,kill")),
        ("checkpoint/fsdp2.py", ()),
        ("checkpoint/local.py", ()),
        ("session/train.py", ("--faults", "preempt")),
        ("data/train.py", ()),
    ],
)
def test_examples_survive(tmp_path: Path, example: str, words: tuple[str, ...]) -> None:
    place = {"checkpoint/fsdp2.py": ("--dir", "{dir}/c")}.get(example, ("{dir}/c",))
    arguments = () if "--in-dir" in words else place

    ended = chaos(
        tmp_path,
        *TWO,
        "--seed",
        "4",
        "--faults",
        "kill",
        *words,
        str(EXAMPLES / example),
        *arguments,
    )

    assert set(ended.colours.values()) == {"green"}, ended.text
    assert ended.code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "reasons"),
    [
        ((), {"rng-not-restored", "computation-differs"}),
        (("first-buckets",), {"rng-not-restored"}),
    ],
)
def test_a_random_state_from_which_nothing_follows_is_not_red(
    tmp_path: Path, words: tuple[str, ...], reasons: set[str]
) -> None:
    given = ("--nproc-per-node", "3", "--faults", "kill", "--seed", "1")

    ended = chaos(tmp_path, *given, SAMPLER, "{dir}", *words)

    assert ended.colours == {"kill-1": "yellow"}, ended.text
    assert ended.reasons == reasons
    assert ended.code == 0


@pytest.mark.slow
def test_data_do_not_come_back_without_a_loader(tmp_path: Path) -> None:
    """With one they do, as examples/data/train.py shows."""
    ended = chaos(tmp_path, *TWO, "--faults", "kill", "--seed", "4", DATA, "{dir}")

    assert ended.colours == {"kill-1": "red"}, ended.text
    assert ended.reasons == {"iterator-made-after-restore"}


@pytest.mark.slow
def test_wrong_results_get_the_right_opinion(tmp_path: Path) -> None:
    """After a persistent error of one of its two places, no job can go on."""
    kinds = "wrong-result,wrong-result-always"

    ended = chaos(tmp_path, *TWO, "--faults", kinds, "--seed", "2", OPINION, "{dir}", "--go-on")

    assert ended.code == 0, ended.text
    for verdict in ended.result["verdicts"]:
        keys = {finding["key"] for finding in verdict["findings"]}
        ends_job = verdict["fault"]["kind"] == "wrong-result-always"
        assert keys == {"opinion-right", *(["wrong-result-found"] if ends_job else [])}, ended.text
        assert (verdict["colour"], verdict["recovered"]) == ("green", not ends_job)
        assert verdict["steps_lost"] == 0
        assert verdict["identical_from"] is not None


@pytest.mark.slow
def test_no_finished_run_stands_on_a_bad_checkpoint(tmp_path: Path) -> None:
    """One that a rank wrote, and two that something else changed on the disk.

    tests/e2e/test_bad_checkpoint.py has each other way, and the benchmark a thousand of them.
    """
    hows = ["nan", "disk", "stale"]
    faults = [f"- {{kind: bad-checkpoint, how: {how}, rank: 1, iteration: 35}}" for how in hows]
    (tmp_path / "plan.yaml").write_text("\n".join(["faults:", *faults]))

    ended = chaos(tmp_path, *TWO, "--plan", "plan.yaml", CHECKPOINTS, "{dir}")

    assert set(ended.colours.values()) == {"green"}, ended.text
    assert ended.code == 0
    tried = []
    for verdict in ended.result["verdicts"]:
        assert verdict["identical_from"] is not None
        assert verdict["recovered"]
        keys = [finding["key"] for finding in verdict["findings"]]
        tried += [verdict["fault"]["how"]] * ("bad-checkpoint-tried" in keys)
    # A wrong replica is not saved, and what is changed on the disk is found by its checksums.
    assert tried == ["nan"], ended.text


@pytest.mark.slow
def test_a_program_that_looks_at_nothing_stands_on_a_bad_checkpoint(tmp_path: Path) -> None:
    hows = ("replica", "nan")
    faults = [f"- {{kind: bad-checkpoint, how: {how}, rank: 0, iteration: 25}}" for how in hows]
    (tmp_path / "plan.yaml").write_text("\n".join(["faults:", *faults]))

    ended = chaos(tmp_path, *TWO, "--plan", "plan.yaml", CHECKPOINTS, "{dir}", "careless")

    assert ended.reasons >= {"bad-checkpoint-kept", "nan-kept"}, ended.text
    assert ended.code == 1


# --- scripts with a bug ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bugs",
    [
        {"rng": ("kill", "rng-not-restored")},
        slow({"sampler": ("kill", "sampler-starts-anew")}),
        slow({"scheduler": ("kill", "scheduler-not-restored")}),
        slow(
            {
                "torn": ("torn-write", "load-failed"),
                "nan": ("nan", "nan-kept"),
                "checksum": ("corrupt-checkpoint", "damage-not-noticed"),
            }
        ),
        slow(
            {
                "sigterm": ("sigterm", "sigterm-swallowed"),
                "exception": ("exception", "exception-swallowed"),
            }
        ),
    ],
    ids="-".join,
)
def test_the_bugs_are_named(tmp_path: Path, bugs: dict[str, tuple[str, str]]) -> None:
    faults = ",".join(dict.fromkeys(fault for fault, _ in bugs.values()))
    # The damage is a byte of a file that no rank is writing just then.
    seed = "5" if "checksum" in bugs else "0"
    words = ("--faults", faults, "--seed", seed, SCRIPT, "--dir", "{dir}", "--bugs", *bugs)

    ended = chaos(tmp_path, *TWO, *words)

    assert ended.code == 1, ended.text
    assert set(ended.colours.values()) == {"red"}, ended.text
    found = {
        (verdict["fault"]["kind"], finding["key"])
        for verdict in ended.result["verdicts"]
        for finding in verdict["findings"]
        if finding["severity"] != "note"
    }
    assert found >= set(bugs.values()), ended.text


@pytest.mark.slow
def test_a_sound_place_that_is_called_broken_is_red(tmp_path: Path) -> None:
    words = ("--faults", "wrong-result", "--seed", "2")

    ended = chaos(tmp_path, *TWO, *words, OPINION, "{dir}", "--bug")

    assert ended.colours == {"wrong-result-1": "red"}, ended.text
    assert ended.reasons == {"opinion-wrong"}, ended.text
    assert ended.code == 1


# --- what may go wrong ----------------------------------------------------------------------------


# Saves nothing but which steps are done, as files in the folder of the first argument.
FILES = """
import pathlib, sys, undaunted
place = pathlib.Path(sys.argv[1])
place.mkdir(exist_ok=True)
for step in range(len(list(place.iterdir())), 20):
    undaunted.step(step)
    (place / str(step)).write_text("done")
"""


def test_checkpoints_that_outlive_a_run_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    (tmp_path / "train.py").write_text(FILES)

    ended = chaos(tmp_path, *TWO, "--faults", "kill", "train.py", "place")

    assert ended.code == 2
    assert "{dir}" in ended.text
    assert "--checkpoint-dir" in ended.text


def test_a_folder_of_the_programs_own_is_named_with_a_remedy_that_works(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FILES)
    words = ("--faults", "kill", "train.py", "lightning_logs")

    ended = chaos(tmp_path, *words)

    assert ended.code == 2
    assert "lightning_logs" in ended.text.partition("new in")[2]
    for remedy in ("--in-dir", "--checkpoint-dir lightning_logs"):
        assert remedy in ended.text
        shutil.rmtree(tmp_path / "chaos")
        shutil.rmtree(tmp_path / "lightning_logs", ignore_errors=True)
        mended = chaos(tmp_path, "--keep-all", *remedy.split(), *words)
        assert mended.reasons == {"identity-unknown"}, mended.text  # it computes nothing
        assert [verdict["recovered"] for verdict in mended.result["verdicts"]] == [True]
        assert not (tmp_path / "lightning_logs").exists()
        assert list((tmp_path / "chaos" / "run-1" / "work").iterdir())
        assert mended.result["checkpoint_bytes"] > 0


def test_a_script_that_fails_undisturbed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit('no data')")

    ended = chaos(tmp_path, "--faults", "kill", "train.py")

    assert ended.code == 2
    assert "ended with exit code 1" in ended.text
    assert "no data" in ended.text


def test_a_script_that_takes_no_step(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('hello')")

    ended = chaos(tmp_path, "--faults", "kill", "train.py")

    assert ended.code == 2
    assert "took no step" in ended.text


def test_a_script_that_records_nothing_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import undaunted\nfor step in range(20):\n    undaunted.step(step)\n"
    )

    ended = chaos(tmp_path, "--faults", "kill", "train.py")

    assert ended.reasons == {"identity-unknown"}
    assert ended.code == 2
    assert "no fault was judged" in ended.text


def test_a_script_that_does_not_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import threading; threading.Event().wait(300)")

    ended = chaos(tmp_path, "--faults", "kill", "--deadline", "2", "train.py")

    assert ended.code == 2
    assert "did not end within 2 s" in ended.text


def begun(tmp_path: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """Start chaos with a script that runs for long; return it and the processes of its run."""
    (tmp_path / "train.py").write_text(
        "import os, pathlib, sys, threading, undaunted\n"
        "undaunted.step(0)\n"
        "fifo = os.open(sys.argv[1], os.O_WRONLY)\n"
        "os.write(fifo, b'x')\n"
        "threading.Event().wait(300)\n"
    )
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    running = subprocess.Popen(
        command("--dir", "chaos", "--faults", "kill", "train.py", str(fifo)),
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    with fifo.open("rb") as end:
        assert end.read(1) == b"x"
    return running, process.descendants(running.pid)


def test_nothing_outlives_chaos_that_is_killed(tmp_path: Path) -> None:
    running, pids = begun(tmp_path)
    assert len(pids) >= 3

    running.kill()
    running.communicate(timeout=60)

    assert wait_until_gone(pids, 60) == []


def test_ctrl_c_ends_the_run_and_what_was_found_is_kept(tmp_path: Path) -> None:
    running, pids = begun(tmp_path)

    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)

    assert running.returncode == 130
    assert "interrupted" in errors
    assert wait_until_gone(pids, 60) == []
    assert json.loads((tmp_path / "chaos" / "result.json").read_bytes())["interrupted"]


def test_two_at_once_in_one_directory(tmp_path: Path) -> None:
    running, _ = begun(tmp_path)

    second = chaos(tmp_path, "--faults", "kill", "train.py", "x")

    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    assert second.code == 2
    assert "another `undaunted chaos` uses" in second.text


def test_a_chaos_that_was_stopped_goes_on(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, sys, undaunted\n"
        "for step in range(30):\n"
        "    undaunted.step(step)\n"
        "os.write(os.open(sys.argv[1], os.O_WRONLY), b'x')\n"
        "os.read(os.open(sys.argv[2], os.O_RDONLY), 1)\n"
    )
    said, go_on = tmp_path / "said", tmp_path / "go-on"
    os.mkfifo(said)
    os.mkfifo(go_on)
    words = ("--dir", "chaos", "--faults", "kill", "train.py", str(said), str(go_on))
    running = subprocess.Popen(
        command(*words), cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
    )
    assert running.stderr is not None
    with said.open("rb") as end:
        assert end.read(1) == b"x"
    pids = process.descendants(running.pid)

    running.send_signal(signal.SIGSTOP)
    go_on.write_bytes(b"x")
    left = wait_until_gone(pids, 60)
    running.send_signal(signal.SIGCONT)

    assert left == []
    assert "iterations 0 to 29" in running.stderr.readline()
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)


def test_a_full_disk(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (tmp_path / "train.py").touch()
    try:
        disk = SmallDisk(place, 1 << 20)
    except NotPossibleError as error:
        pytest.skip(str(error))
    disk.fill()
    words = command("--dir", "place/chaos", "--faults", "kill", "train.py")

    done = subprocess.run(
        stage.command(os.getpid(), disk.namespaces, words),
        cwd=tmp_path,
        env=environment(),
        pass_fds=disk.namespaces,
        capture_output=True,
        text=True,
        timeout=60,
    )

    disk.close()
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert "--dir" in done.stderr


@pytest.mark.parametrize("text", ["", "[]", "faults: 3", "faults: [{kind: kil}]", "\0"])
def test_garbage_as_a_plan(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.yaml").write_text(text)
    (tmp_path / "train.py").touch()

    ended = chaos(tmp_path, "--plan", "plan.yaml", "train.py")

    assert ended.code == 2
    assert "plan.yaml" in ended.text
    assert not (tmp_path / "chaos").exists()
