"""Tests of `benchmarks.page`."""

from __future__ import annotations

import json

import pytest

from benchmarks import page
from benchmarks.browser import find


def test_without_a_browser_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(page, "find", lambda: None)
    assert page.main([]) == 1
    assert "install chromium-headless-shell" in capsys.readouterr().err


@pytest.mark.e2e
@pytest.mark.skipif(find() is None, reason="no Chromium")
def test_a_small_job_is_measured_and_pictured(tmp_path, capsys):
    picture = tmp_path / "page.webp"
    options = ["--nodes", "4", "--restarts", "3", "--opens", "1", "--json"]
    assert page.main([*options, "--picture", str(picture)]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert 0 < figures["size_mb"] < 1
    assert figures["first_drawing_ms"] > 0
    assert picture.read_bytes()[8:12] == b"WEBP"
