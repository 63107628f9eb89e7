"""Puts the page together and writes it: one file that needs nothing else, also no network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from undaunted.base.text import one_line
from undaunted.journal.files import write_output
from undaunted.journal.page import sections
from undaunted.journal.page.markup import base_style, named_by_hash, text
from undaunted.journal.page.timeline import timeline

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from undaunted.journal.job.launches import Launch
    from undaunted.journal.job.values import JobSummary
    from undaunted.journal.reader import Journal

_STATIC = Path(__file__).with_name("static")
_SCRIPTS = ("model.js", "view.js", "paint.js", "overview.js", "describe.js", "main.js")
_SLOT = re.compile(r"\{\{(\w+)\}\}")
# What could end the element the data is in, or a line of a script.
_UNSAFE = {ord(one): f"\\u{ord(one):04x}" for one in "<>&\u2028\u2029"}


def write_page(
    job: JobSummary,
    launches: Sequence[Launch],
    journals: Sequence[Journal],
    file: str | os.PathLike[str],
    explained: str = "",
) -> None:
    """Write the report of a job as an HTML file.

    Args:
        job: its summary.
        launches: those it was made from.
        journals: where the launches are from.
        file: see `write_output`.
        explained: what went wrong, in lines of text; "" = the page says nothing of it.

    Raises:
        OSError: the file cannot be written.
    """
    write_output(file, page(job, launches, journals, explained))


def page(
    job: JobSummary,
    launches: Sequence[Launch],
    journals: Sequence[Journal],
    explained: str = "",
) -> str:
    """Return the page."""
    style = base_style() + _static("style.css")
    script = "(() => {\n" + "\n".join(_static(name) for name in _SCRIPTS) + "})();\n"
    parts = {
        "policy": _policy(style, script),
        "title": text(f"{one_line(job.run_id) or 'run'} - report of undaunted"),
        "style": style,
        "heading": sections.heading(job),
        "about": sections.about(job),
        "tiles": sections.tiles(job),
        "times": sections.times(job),
        "legend": sections.legend(),
        "explained": sections.explained(explained),
        "failures": sections.failures(job),
        "restarts": sections.restarts(job),
        "rounds": sections.rounds(job),
        "nodes": sections.nodes(job),
        "checkpoints": sections.checkpoints(job),
        "notes": sections.notes(job, journals),
        "footer": "Made by <code>undaunted report --html</code>.",
        "data": _data(job, launches),
        "script": script,
    }
    # In one pass: what is put into a slot is not looked at again.
    return _SLOT.sub(lambda slot: parts[slot[1]], _static("page.html"))


def _data(job: JobSummary, launches: Sequence[Launch]) -> str:
    return msgspec.json.encode(timeline(job, launches)).decode().translate(_UNSAFE)


def _policy(style: str, script: str) -> str:
    """Return what the browser may do: run this script, use this style, reach nothing."""
    return (
        f"default-src 'none'; script-src {named_by_hash(script)}; "
        f"style-src {named_by_hash(style)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _static(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")
