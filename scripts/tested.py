"""The figures in docs/tested.md: everything after the page's mark, counted from the tests."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

from scripts.known_issues import below_mark
from tests.gpu.rows import ROWS
from tests.jobs.page import word
from tests.jobs.table import JOBS

TESTS = Path(__file__).resolve().parent.parent / "tests"
# Tests of the other folders are units.
KINDS = {
    "e2e": "real launchers and ranks on one machine",
    "netns": "hosts in network namespaces that are cut, slowed and split",
    "slurm": "a real Slurm cluster on one machine",
    "integrations": "adapters with the real frameworks",
    "simulator": "the simulators themselves, and bugs that were planted for them to find",
    "docs": "tests that read or run the pages, one for each page of these kinds",
    "gpu": "the program that runs the rows of GPUs, and a CPU's version of some",
}
_TEST = re.compile(r"^(?:async )?def test_", re.MULTILINE)


def with_figures(page: str) -> str:
    """Return the page with figures that are up to date.

    Raises:
        ValueError: the page has no mark.
    """
    return below_mark(page, _figures())


def _figures() -> str:
    counted = _functions()
    rows = [
        ("units: decisions, formats, files and processes of one module", counted.pop("")),
        *((about, counted[folder]) for folder, about in KINDS.items()),
    ]
    lines = ["\n| test functions, many of them with several inputs | |\n|---|---|\n"]
    lines += [f"| {about} | {number:,} |\n" for about, number in rows]
    lines += ["\n| other proofs | |\n|---|---|\n"]
    lines += [f"| {about} | {text} |\n" for about, text in (_jobs(), _reports(), _gpus())]
    return "".join(lines)


def _functions() -> Counter[str]:
    found: Counter[str] = Counter()
    for path in TESTS.rglob("test_*.py"):
        folder = path.relative_to(TESTS).parts[0]
        found[folder if folder in KINDS else ""] += len(_TEST.findall(path.read_text("utf-8")))
    return found


def _jobs() -> tuple[str, str]:
    kept = json.loads((TESTS / "jobs" / "results.json").read_text("utf-8"))
    cells = {(cell["job"], cell["fault"]): cell for cell in kept["cells"]}
    words = Counter(word(cells.get((job, fault))) for job in JOBS for fault in JOBS[job].faults)
    text = f"{words['right']} right, {words['wrong']} wrong, {words['not run']} not run"
    about = (
        f"[{len(JOBS)} programs as users write them](proven.md), each undisturbed and under faults"
    )
    return about, text


def _reports() -> tuple[str, str]:
    count = sum(
        len(re.findall(r"^- ", path.read_text("utf-8"), re.MULTILINE))
        for path in (TESTS / "attribution" / "reports").glob("*/*.yaml")
    )
    return (
        "[failures after public reports](explain-accuracy.md) that `explain` has to tell",
        f"{count}",
    )


def _gpus() -> tuple[str, str]:
    one = sum(not row.needs_several for row in ROWS)
    about = "[rows of `make test-gpu`](health.md#checked-on-a-gpu), which need a GPU"
    return about, f"{one}, and {len(ROWS) - one} that need several"
