"""Journals of real jobs, and all that people are shown of them.

A folder of ``cases`` is the directory of a run. For another case put the journals of a job there
(without the names of its people and places), and let ``pytest tests/journal --update`` write the
texts. The console is that of the launcher: tests/fault_tolerance/agent/test_narrator.py.
"""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from undaunted.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Iterator

CASES = Path(__file__).with_name("cases")
NAMES = sorted(path.name for path in CASES.iterdir() if path.is_dir())


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Print a command's output about a case."""
    monkeypatch.chdir(CASES)

    def call(*words: str) -> str:
        assert main(words) == 0
        return capsys.readouterr().out.replace(str(CASES), "CASES")

    return call


@pytest.mark.parametrize("name", NAMES)
def test_what_people_see_of_a_job(name: str, shown: Any, golden: Any) -> None:
    golden(CASES / name / "report.txt", shown("report", name, "--times", "--price", "3600 EUR"))
    golden(CASES / name / "explain.txt", shown("explain", name))


def test_a_page(shown: Any, golden: Any, tmp_path: Path) -> None:
    """Without what is explained, which has a file."""
    file = tmp_path / "page.html"
    shown("report", "lost-node", "--html", str(file), "--price", "3600 EUR")
    explained = {" ".join(line.split()) for line in shown("explain", "lost-node").splitlines()}
    lines = [line for line in lines_of(file.read_text()) if line not in explained]
    golden(CASES / "lost-node" / "page.txt", "\n".join(lines) + "\n")


def test_what_programs_read_of_a_job(shown: Any, golden: Any) -> None:
    text = ""
    for command in ("report", "explain"):
        found = [json.loads(shown(command, name, "--json")) for name in NAMES]
        keys = sorted({key for one in found for key in keys_of(one)})
        text += "\n".join([f"$ undaunted {command} --json", *keys, "", ""])
    golden(CASES / "json_keys.txt", text)


def lines_of(page: str) -> Iterator[str]:
    """Yield the text of a page, a line for each paragraph, row or item."""
    page = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
    page = re.sub(r"</?(?:p|h\d|tr|li|div|section|pre|summary|dt|svg)\b[^>]*>", "\n", page)
    for line in re.sub("<[^>]*>", " ", page).splitlines():
        if text := " ".join(unescape(line).split()):
            yield text


def keys_of(value: object, path: str = "") -> Iterator[str]:
    """Yield the way to each value in a document, such as ``job.rounds[].cause``."""
    match value:
        case dict():
            for key, inner in value.items():
                yield from keys_of(inner, f"{path}.{'N' if key.isdecimal() else key}".lstrip("."))
        case list() if value:
            for inner in value:
                yield from keys_of(inner, f"{path}[]")
        case _:
            yield path
