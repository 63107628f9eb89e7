from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import undaunted
from undaunted.progress import api
from undaunted.progress.snapshot import Phase

ROOT = Path(__file__).parents[2]


@pytest.fixture
def page(area, monkeypatch):
    """What the agent sees of this process, which was started with a page."""
    monkeypatch.setenv("UNDAUNTED_PAGE", area.env_value(0))
    return lambda: area.snapshot(0)


def test_the_first_call_attaches(page):
    assert page().phase is Phase.EMPTY
    undaunted.heartbeat()
    assert (page().phase, page().heartbeat_count) == (Phase.INITIALIZED, 1)


def test_everything_reaches_the_page(page, area):
    undaunted.step(4)
    undaunted.event("name", "text")
    with undaunted.section("a"), undaunted.section("b"):
        assert page().sections["a"].open_since_ns is not None
    assert page().iteration == 4
    assert {name: s.count for name, s in page().sections.items()} == {"a": 1, "b": 1}
    (event,), _ = area.drain_events(0)
    assert (event.name, event.text) == ("name", "text")


def test_nobody_looks_at_a_digest_unless_asked_to(page, monkeypatch):
    undaunted.step(1, digest=object())
    assert page().iteration == 1
    seen = []
    monkeypatch.setattr(api, "on_step", lambda *given: seen.append((*given, page().iteration)))
    undaunted.step(2, digest="state")
    undaunted.step(3)
    assert seen == [(2, "state", 1), (3, None, 2)]
    assert page().iteration == 3


def test_names_bound_before_the_first_call_work_after_it(page):
    from undaunted import heartbeat, step

    heartbeat()
    step(1)
    assert undaunted.heartbeat is heartbeat
    assert page().heartbeat_count == 2


def test_without_a_launcher_it_is_said_once_and_nothing_else_happens():
    code = (
        "import undaunted\n"
        "for i in range(3):\n"
        "    undaunted.heartbeat(); undaunted.step(i); undaunted.event('e')\n"
        "    with undaunted.section('a'): pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stdout) == (0, "")
    (line,) = done.stderr.splitlines()
    assert "no launcher" in line
    assert "undaunted run" in line


def test_unknown_names():
    with pytest.raises(AttributeError, match="has no attribute 'heartbeet'"):
        _ = undaunted.heartbeet


def test_the_version_is_that_of_the_project():
    text = (ROOT / "pyproject.toml").read_text()
    assert f'\nversion = "{undaunted.__version__}"\n' in text
