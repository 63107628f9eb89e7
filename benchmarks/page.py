"""How large the HTML page of a report is, how fast it opens and how fast it is drawn.

    python -m benchmarks.page [--nodes N] [--restarts N] [--opens N] [--json] [--picture FILE]

Journals of a simulated job (`benchmarks.simulated_job`) become a page, which a headless Chromium
opens and zooms with events of a mouse wheel. Times of drawing are those of the page's script. From
frame to frame the browser, which has no GPU, paints as well; 16.7 ms is the least it does.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.browser import Page, browser, find
from benchmarks.simulated_job import simulate
from undaunted.journal.job.launches import launches_of
from undaunted.journal.job.summary import summarize_job
from undaunted.journal.page.write import write_page
from undaunted.journal.reader import Journal

if TYPE_CHECKING:
    from collections.abc import Sequence

_WHEEL = 40  # events, one frame each
_NAMES_WIDTH = 132
# One key for each frame, closer and farther in turn; the times of the frames.
_KEYS = """new Promise((done) => {
  const rows = document.getElementById("rows"), times = [];
  const step = (now) => {
    if (times.push(now) > 80) return done(times);
    const key = times.length % 40 < 20 ? "+" : "-";
    rows.dispatchEvent(new KeyboardEvent("keydown", { key }));
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
})"""


def measure(nodes: int, restarts: int, opens: int, picture: Path | None) -> dict[str, float]:
    """Return the figures.

    Raises:
        RuntimeError: there is no Chromium.
    """
    program = find()
    if program is None:
        raise RuntimeError("no Chromium: install chromium-headless-shell")
    made = simulate(nodes=nodes, restarts=restarts)
    journals = [Journal(Path(node.name), events=node.events) for node in made.nodes]
    launches = launches_of(journals)
    job = summarize_job(launches)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "page.html"
        start = time.perf_counter()
        write_page(job, launches, journals, file)
        figures = {"write_s": time.perf_counter() - start, "size_mb": file.stat().st_size / 1e6}
        first = []
        for number in range(opens):
            with browser(program, Path(directory) / str(number)) as page:
                page.open(file)
                page.settle()
                first.append(float(page.dataset("timeline")["first"]))
                if number == 0:
                    figures |= _draw(page, picture)
        figures["first_drawing_ms"] = median(first)
        figures["first_drawing_longest_ms"] = max(first)
    return figures


def _draw(page: Page, picture: Path | None) -> dict[str, float]:
    x, y, width, _ = page.edge("rows")
    if picture is not None:
        page.evaluate("document.getElementById('timeline-heading').scrollIntoView()")
        page.settle()
        page.picture(picture)
        x, y, width, _ = page.edge("rows")
    page.evaluate("document.getElementById('rows').focus()")
    x, y = x + (width + _NAMES_WIDTH) / 2, y + 200
    nodes = _zoom(page, x, y)
    page.evaluate("document.getElementById('do-ranks').click()")
    page.settle()
    ranks = _zoom(page, x, y)
    between = sorted(late - early for early, late in pairwise(page.evaluate(_KEYS)))
    return {
        "frame_of_nodes_ms": median(nodes),
        "frame_of_nodes_longest_ms": max(nodes),
        "frame_of_ranks_ms": median(ranks),
        "frame_of_ranks_longest_ms": max(ranks),
        "between_frames_ms": median(between),
        "between_frames_p90_ms": between[len(between) * 9 // 10],
    }


def _zoom(page: Page, x: float, y: float) -> list[float]:
    """Zoom in and out again; return the milliseconds that each frame took."""
    times = []
    for number in range(_WHEEL):
        page.wheel(x, y, -120 if number < _WHEEL // 2 else 120)
        times.append(float(page.dataset("timeline")["frame"]))
    return times


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=125, help="of 8 ranks; default: %(default)s")
    parser.add_argument("--restarts", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--opens", type=int, default=5, help="how often; default: %(default)s")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="of the timeline, as WebP")
    options = parser.parse_args(argv)
    try:
        figures = measure(options.nodes, options.restarts, options.opens, options.picture)
    except RuntimeError as error:
        print(f"benchmarks.page: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(figures))
        return 0
    for name, value in figures.items():
        print(f"{name:<28}{value:>10.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
