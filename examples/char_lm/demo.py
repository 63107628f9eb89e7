"""Show what undaunted does: train undisturbed, train again through two faults, compare the results.

Exits with 0 only if everything went as promised. Takes about 40 seconds on two cores.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parent
LAUNCHER = [sys.executable, "-m", "undaunted.cli.main"]
STEPS = 200
HANG_LIMIT_S = 3
FAULTS = "sigkill:rank=1,iteration=60;sleep:rank=0,iteration=140"
EXPECTED_VERDICTS = [("crash", 1), ("hang", 0)]
DEADLINE_S = 100.0  # for one training run; it takes about 10 s

# What to say when a line of the run contains the words on the left.
REMARKS = {
    "undaunted: injected fault sigkill": "rank 1 has just been killed. Rank 0 cannot go on alone.",
    "undaunted: injected fault sleep": "rank 0 hangs: it will never come back on its own. "
    f"The limit is {HANG_LIMIT_S} s without a step.",
    "resumed from the checkpoint": "all ranks are back; the steps since the checkpoint come again.",
}


@dataclass(frozen=True)
class Run:
    """Where one training run keeps its files, and how it ended."""

    directory: Path
    exit_code: int

    @property
    def report_dir(self) -> Path:
        return self.directory / "run"

    @property
    def digest(self) -> str:
        """Digest of the final parameters, "" if there are none."""
        path = self.directory / "digest"
        return path.read_text(encoding="ascii").strip() if path.exists() else ""


def main() -> int:
    scratch = Path(tempfile.mkdtemp(prefix="undaunted-demo-"))
    title(f"1. Train a character-level language model on 2 ranks, {STEPS} steps, no faults")
    calm = train(scratch / "calm", [])

    title("2. The same again. Rank 1 will be killed at step 60, rank 0 will hang at step 140")
    limits = ["--ft-rank-heartbeat-timeout", str(HANG_LIMIT_S)]
    stormy = train(scratch / "stormy", [*limits, "--inject-fault", FAULTS])

    title("3. What undaunted knows about the second run")
    report_code = subprocess.run([*LAUNCHER, "report", str(stormy.report_dir)]).returncode

    title("4. Were the promises kept?")
    problems = judge(calm, stormy, report_code)
    for problem in problems:
        print(f"NO: {problem}", flush=True)
    if not problems:
        print(
            "Yes: the crash and the hang were both explained and survived, and the parameters of\n"
            f"both runs are the same, bit for bit (sha256 {calm.digest[:16]}...)."
        )
    print(f"The files of both runs stay in {scratch}.")
    return 1 if problems else 0


def title(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}", flush=True)


def train(directory: Path, options: list[str]) -> Run:
    """Run the training under `undaunted run` with ``options``; show its output as it comes."""
    directory.mkdir()
    arguments = ["run", "--nproc-per-node", "2", "--max-restarts", "3", "--run-dir", "run"]
    program = [str(EXAMPLE / "train.py"), "--steps", str(STEPS), "--dir", "checkpoints"]
    command = [*arguments, *options, *program, "--hash-out", "digest"]
    print(f"$ undaunted {shlex.join(command)}\n", flush=True)
    started = time.monotonic()
    with subprocess.Popen(
        [*LAUNCHER, *command],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as process:
        # The agent ends the whole tree when the launcher is gone.
        deadline = threading.Timer(DEADLINE_S, process.kill)
        deadline.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                show(line.rstrip(), time.monotonic() - started)
        finally:
            deadline.cancel()
            deadline.join()
    return Run(directory, process.returncode)


def show(line: str, seconds: float) -> None:
    print(f"{seconds:6.2f} s | {line}", flush=True)
    for words, remark in REMARKS.items():
        if words in line:
            print(f"         > {remark}", flush=True)


def judge(calm: Run, stormy: Run, report_code: int) -> list[str]:
    """Return what is not as promised."""
    problems = [
        f"the {name} run ended with exit code {run.exit_code} instead of 0"
        for name, run in (("undisturbed", calm), ("disturbed", stormy))
        if run.exit_code != 0
    ]
    if not calm.digest:
        problems.append("the undisturbed run left no parameters")
    elif stormy.digest != calm.digest:
        found = stormy.digest or "none"
        problems.append(f"the parameters differ: sha256 {calm.digest}, with faults {found}")
    events = journal(stormy.report_dir)
    verdicts = [(e["kind"], e["rank"]) for e in events if e["event"] == "verdict"]
    if verdicts != EXPECTED_VERDICTS:
        problems.append(f"the verdicts are {verdicts} instead of {EXPECTED_VERDICTS}")
    if report_code != 0:
        problems.append(f"`undaunted report` ended with exit code {report_code}")
    return problems


def journal(run_dir: Path) -> list[dict[str, object]]:
    """Return the events of the run, in order."""
    contents = [path.read_bytes() for path in run_dir.glob("journal-*.jsonl")]
    return [json.loads(line) for content in contents for line in content.splitlines()]


if __name__ == "__main__":
    sys.exit(main())
