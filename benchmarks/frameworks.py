"""Whether scripts of frameworks come to the result of an undisturbed run: see `--help`.

`.venv-integrations/transformers/bin/python -m benchmarks.frameworks --framework transformers`: two
ranks over gloo are killed, hung, told to stop or killed while they save, at steps drawn by a seed.
The parameters at the end must be those of a run that was left alone, bit for bit.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.__main__ import machine
from tests.e2e.launcher import Launcher

# A script takes a folder, and disturb=KIND:RANK:STEP; it writes result-RANK into the folder.
SCRIPTS = {
    "transformers": Path("tests/integrations/transformers/train.py"),
    "accelerate": Path("tests/integrations/transformers/loop.py"),
    "lightning": Path("tests/integrations/lightning/train.py"),
}
KINDS = ("kill", "hang", "kill_save", "signal", "launcher")
STEPS, SAVES = 24, 5  # how many; after how many of them is saved
LIMIT_S = 180.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.frameworks", description=__doc__)
    parser.add_argument("--framework", choices=SCRIPTS, required=True)
    parser.add_argument("--moments", type=int, default=20, help="of each kind (20)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (1)")
    args = parser.parse_args()
    chance = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        code, expected = run(args.framework, Path(folder), "")
    assert code == 0, "the undisturbed run"
    counts = Counter[tuple[str, str]]()
    for kind in KINDS * args.moments:
        at = moment(kind, chance)
        with tempfile.TemporaryDirectory() as folder:
            verdict = judged(args.framework, Path(folder), kind, at, expected)
        counts[kind, verdict] += 1
        print(f"{kind} at step {at[1]} of rank {at[0]}: {verdict}", file=sys.stderr, flush=True)
    print("| what went wrong | what became of it | times |")
    print("|---|---|---|")
    for (kind, verdict), number in sorted(counts.items()):
        print(f"| {kind} | {verdict} | {number} |")
    print(machine())
    return 1 if any("same" not in verdict for _, verdict in counts) else 0


def moment(kind: str, chance: random.Random) -> tuple[int, int]:
    """A rank, and a step: one after which it is saved, where that matters."""
    rank = chance.randrange(2)
    if kind == "kill_save":
        return rank, SAVES * chance.randrange(1, STEPS // SAVES + 1)
    return rank, chance.randrange(1, STEPS - 1)


def judged(
    framework: str, folder: Path, kind: str, at: tuple[int, int], expected: list[str]
) -> str:
    wish = f"disturb={kind}:{at[0]}:{at[1]}"
    code, found = run(framework, folder, wish, stop_at=at if kind == "launcher" else None)
    stopped = code == 75
    if stopped:
        code, found = run(framework, folder, "")
    verdict = f"ended with {code}"
    if code == 0:
        verdict = "same result" if found == expected else "ANOTHER result"
    return f"stopped, {verdict}" if stopped else verdict


def run(
    framework: str, folder: Path, wish: str, *, stop_at: tuple[int, int] | None = None
) -> tuple[int, list[str]]:
    """Run the script once; return the exit code, and what the ranks came to."""
    (folder / "job").mkdir(exist_ok=True)
    options = ["--nproc-per-node", "2", "--max-restarts", "3"]
    options += ["--ft-rank-section-timeouts", "step:6s"]
    options += ["--preload", framework]  # which imports it once for all ranks and restarts
    script = [str(SCRIPTS[framework].resolve()), "job", *([wish] if wish else [])]
    environment = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path.cwd())}
    launcher = Launcher([*options, *script], folder, environment)
    try:
        if stop_at is not None:
            launcher.wait_for(f"rank {stop_at[0]} step {stop_at[1]}$", LIMIT_S)
            launcher.process.send_signal(signal.SIGTERM)
        code = launcher.finish(LIMIT_S)
    finally:
        launcher.close()
    return code, [path.read_text() for path in sorted((folder / "job").glob("result-*"))]


if __name__ == "__main__":
    sys.exit(main())
