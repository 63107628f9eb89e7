"""The settings and the results of `make mutation`; mutmut itself is not run."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

from scripts.mutated import main, settings, unnoticed

if TYPE_CHECKING:
    import pytest


def test_the_settings_name_the_module_and_its_tests() -> None:
    found = tomllib.loads(settings("src/undaunted/a.py", ["tests/a", "tests/b.py"]))
    mutmut = found["tool"]["mutmut"]
    assert mutmut["only_mutate"] == ["src/undaunted/a.py"]
    assert mutmut["pytest_add_cli_args_test_selection"] == ["tests/a", "tests/b.py"]


def test_what_no_test_has_noticed_is_listed() -> None:
    results = """
    undaunted.a.x_add__mutmut_1: survived
    undaunted.a.x_add__mutmut_2: killed
    undaunted.a.x_end__mutmut_1: no tests
    """
    assert list(unnoticed(results)) == [
        ("undaunted.a.x_add__mutmut_1", "survived"),
        ("undaunted.a.x_end__mutmut_1", "no tests"),
    ]


def test_without_a_module_the_use_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "MODULE=" in capsys.readouterr().out
