"""Jobs that a seed makes: states, moments of an interruption, pairs of options.

``GENERATED_SAMPLES=50`` takes so many of each, ``GENERATED_SEED=1000`` begins with that seed.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.launcher import Launcher, alive, launched, wait_until_gone
from undaunted.base import process
from undaunted.cli.options import RUN

pytestmark = pytest.mark.e2e

SAMPLES = int(os.environ.get("GENERATED_SAMPLES", "0"))
FIRST = int(os.environ.get("GENERATED_SEED", "0"))


def seeds(few: int) -> range:
    return range(FIRST, FIRST + (SAMPLES or few))


# --- states ---------------------------------------------------------------------------------------

STATE = (Path(__file__).parent / "generated_scripts/state.py").read_text()


@pytest.mark.torch
@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("seed", seeds(3))
def test_a_random_state_goes_on_after_a_kill(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    fault = f"sigkill:rank={rng.randrange(2)},iteration={rng.randrange(1, 20)}"
    with launched(
        tmp_path,
        STATE,
        *("--nproc-per-node", "2", "--max-restarts", "1", "--inject-fault", fault),
        args=(str(seed),),
    ) as launcher:
        assert launcher.finish(110) == 0, launcher.text
    assert "the same" in launcher.text, launcher.text
    assert len(launcher.events("round_started")) == 2, launcher.text


# --- moments --------------------------------------------------------------------------------------

INTERRUPTED = (Path(__file__).parent / "generated_scripts/interrupted.py").read_text()
ENDS_S = 2.0  # within which most of the moments lie


@pytest.mark.torch
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("seed", seeds(1))
def test_a_job_is_interrupted_at_a_random_moment(
    tmp_path: Path, seed: int, number: signal.Signals
) -> None:
    """It goes on with the next start, comes to the same end, and nothing is left of it."""
    options = ["--run-dir", "run", "--nproc-per-node", "2", "train.py"]
    (tmp_path / "train.py").write_text(INTERRUPTED)
    first = Launcher(options, tmp_path)
    try:
        time.sleep(random.Random(f"{seed} {number}").uniform(0.0, 8.0))  # the moment itself
        pids = [first.process.pid, *process.descendants(first.process.pid)]
        first.process.send_signal(number)
        code = first.finish(60)
    finally:
        first.close()
    began = any((tmp_path / "run").glob("journal-*.jsonl"))
    assert code in ((-number, 75, 0) if began else (-number, 75, 1, 130)), first.text
    assert wait_until_gone(pids, 30) == []
    assert not any(alive(pid) for pid in pids)
    second = Launcher(options, tmp_path)
    try:
        assert second.finish(60) == 0, second.text
    finally:
        second.close()
    ends = [line for line in second.seen if line.startswith("END")]
    assert ends == ["END 60 1770"], first.text + second.text


# --- options --------------------------------------------------------------------------------------

# Values of options; {dir} is an empty folder. Missing are those that need something beside the job:
# other nodes, services, certificates, GPUs, a store.
VALUES: dict[str, tuple[str, ...]] = {
    "nproc-per-node": ("1", "2"),
    "nnodes": ("1", "1:1"),
    "standalone": ("",),
    "node-name": ("here",),
    "rdzv-id": ("seven",),
    "ft-restart-policy": ("any-failed", "min-healthy"),
    "run-dir": ("{dir}/journals",),
    "log-dir": ("{dir}/logs",),
    "redirects": ("0", "1", "3", "0:3"),
    "tee": ("0", "2", "3"),
    "local-ranks-filter": ("0",),
    "ft-per-cycle-applog-prefix": ("{dir}/train.log",),
    "ft-nvrx-logfile": ("{dir}/nvrx.log",),
    "ft-cycle-info-job-id": ("job",),
    "ft-cycle-info-dir": ("{dir}/cycles",),
    "max-restarts": ("0", "3"),
    "restart-intensity": ("3/10m",),
    "advice": ("log", "act"),
    "slow-ranks": ("log", "stop"),
    "slow-ranks-after": ("10m",),
    "worker-start": ("warm", "fresh"),
    "preload": ("json,decimal",),
    "learn-imports": ("on", "off"),
    "role": ("trainer",),
    "virtual-local-rank": ("",),
    "flight-recorder": ("on", "off"),
    "ft-restart-lost-ranks": ("",),
    "signals-to-handle": ("SIGTERM", "SIGTERM,SIGUSR1"),
    "term-timeout": ("10", "1m"),
    "workers-stop-timeout": ("1",),
    "exit-codes": ("all", "simple"),
    "log-format": ("text", "plain", "json"),
    "log-max-bytes": ("0", "1M"),
    "strike-file": ("{dir}/strikes",),
    "strike-limit": ("3/1h",),
    "ft-rank-heartbeat-timeout": ("60", "none"),
    "ft-initial-rank-heartbeat-timeout": ("60",),
    "ft-rank-section-timeouts": ("step:60,save:2m",),
    "ft-rank-out-of-section-timeout": ("60",),
    "ft-num-warmup-iterations": ("2",),
    "ft-safety-factor": ("4",),
    "ft-learn-timeouts": ("true", "false"),
    "ft-min-measured-timeout": ("30",),
    "ft-rank-termination-signal": ("SIGTERM", "SIGKILL"),
    "ft-install-exception-hook": ("true", "false"),
    "ft-max-no-progress-cycles": ("0", "2"),
    "ft-min-progress-iterations": ("2",),
    "ft-checkpoint-iteration-file": ("{dir}/latest.txt",),
    "ft-last-copies-mb-per-s": ("100",),
    "ft-check-remaining-processes": ("true", "false"),
    "ft-log-level": ("INFO", "WARNING", "ERROR"),
    "ft-node-health-check-interval": ("5",),
    "monitor-interval": ("1",),
    "start-method": ("spawn",),
    "metrics-port": ("0",),
}
PAIRS = sorted(itertools.combinations(VALUES, 2))
TRAINS = """
    import os, time, undaunted
    for i in range(5):
        undaunted.step(i)
        time.sleep(0.01)
    print("done", os.environ["RANK"], flush=True)
"""


def test_there_are_such_options() -> None:
    assert {*VALUES} <= {option.name for option in RUN.options}


@pytest.mark.parametrize("seed", seeds(5))
def test_a_random_pair_of_options(tmp_path: Path, seed: int) -> None:
    """A job runs to its end, or is refused by a line that names one of the two."""
    rng = random.Random(seed)
    pair = rng.choice(PAIRS)
    words = []
    for name in pair:
        value = rng.choice(VALUES[name])
        words += [f"--{name}", *([value.format(dir=tmp_path)] if value else [])]
    fails = "max-restarts" not in pair and rng.random() < 0.5
    if fails:
        words += ["--max-restarts", "1", "--inject-fault", "sigkill:rank=0,iteration=3"]
    with launched(tmp_path, TRAINS, *words) as launcher:
        code = launcher.finish()
    text = "\n".join([launcher.text, *(path.read_text() for path in tmp_path.rglob("*.log"))])
    assert "Traceback" not in text, (words, text)
    if code == 2:
        assert any(name in text for name in pair), (words, text)
        return
    assert code == 0, (words, text)
    assert "done 0" in text, (words, text)
