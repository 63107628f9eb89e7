"""How often the rules are right: ``python -m tests.attribution.reports.measure [PART ...]``."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.attribution.reports import PARTS, Report, reports
from undaunted.attribution.findings import CAUSES
from undaunted.attribution.logs.analyse import Reading, read_logs


@dataclass(frozen=True)
class Outcome:
    """What was read in a log, beside what is right."""

    report: Report
    reading: Reading

    @property
    def cause(self) -> str | None:
        """What is said to be the cause."""
        return self.reading.findings[0].cause if self.reading.findings else None

    @property
    def is_right(self) -> bool:
        """Whether that is it."""
        return self.cause in self.report.causes

    @property
    def place_is_right(self) -> bool | None:
        """Whether the right rank or node is named, None = the log names none."""
        report = self.report
        if report.ranks is None and report.nodes is None:
            return None
        if not self.reading.findings:
            return False
        root = self.reading.findings[0]
        ranks = report.ranks is None or root.ranks == report.ranks
        return ranks and (report.nodes is None or root.nodes == report.nodes)

    @property
    def stops_wrongly(self) -> bool:
        """Whether a job is ended that could go on."""
        return self.reading.action == "stop"

    @property
    def excludes_wrongly(self) -> bool:
        """Whether a node is left out that is not known to be broken."""
        return self.reading.action == "exclude" and not self.report.exclude

    def __str__(self) -> str:
        root = self.reading.findings[0] if self.reading.findings else None
        who = f", ranks {list(root.ranks)}, nodes {list(root.nodes)}" if root else ""
        meant = self.report.causes[0]
        return f"{self.report.source}: {meant} taken for {self.cause}{who}"


def read(report: Report, folder: Path) -> Outcome:
    """Read the log of a case."""
    path = folder / "job.log"
    path.write_text(report.log, "utf-8")
    return Outcome(report, read_logs([path], names=False))


def read_all(part: str) -> list[Outcome]:
    """Read the logs of a part."""
    with tempfile.TemporaryDirectory() as name:
        return [read(report, Path(name)) for report in reports(part)]


def table(outcomes: list[Outcome]) -> list[str]:
    """Return the rows of a table: of each cause, how many are right."""
    of = Counter(one.report.causes[0] for one in outcomes)
    right = Counter(one.report.causes[0] for one in outcomes if one.is_right)
    order = [cause for cause in CAUSES if cause in of] + [None] * (None in of)
    rows = ["| cause | cases | right |", "|---|---|---|"]
    return rows + [f"| {cause or 'none'} | {of[cause]} | {right[cause]} |" for cause in order]


def main(parts: list[str]) -> int:
    """Print the figures of the parts, and each case that is wrong."""
    for part in parts or PARTS:
        outcomes = read_all(part)
        places = [one for one in outcomes if one.place_is_right is not None]
        projects = {one.report.project.lower() for one in outcomes}
        print(f"## {part}: {len(outcomes)} cases of {len(projects)} projects")
        print(*table(outcomes), sep="\n")
        for what, ok, some in (
            ("cause", [one for one in outcomes if one.is_right], outcomes),
            ("rank or node", [one for one in places if one.place_is_right], places),
        ):
            print(f"{what}: {len(ok)} of {len(some)} right, {len(ok) / len(some):.1%}")
        stops = [one for one in outcomes if one.stops_wrongly]
        blames = [one for one in outcomes if one.excludes_wrongly]
        print(f"false STOP: {len(stops)}; node blamed without need: {len(blames)}")
        wrong = [one for one in outcomes if not one.is_right]
        misplaced = [one for one in places if one.is_right and not one.place_is_right]
        for title, some in (
            ("wrong cause", wrong),
            ("wrong place", misplaced),
            ("false STOP", stops),
            ("node blamed without need", blames),
        ):
            print(*(f"{title}: {one}" for one in some), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
