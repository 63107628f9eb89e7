"""Verdicts about numbers that are really computed wrong, by ranks that exchange their slots."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training import gloo_ranks

pytestmark = [pytest.mark.e2e, pytest.mark.torch]
TRIALS = 100


def test_every_verdict_is_right(tmp_path):
    program = Path(__file__).with_name("opinions_program.py")
    for said in gloo_ranks.run(program, 2, tmp_path, str(tmp_path), str(TRIALS)):
        assert said == {"wrong": [], "trials": TRIALS}
