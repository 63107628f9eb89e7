"""What the common configuration of the tests promises."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import long_ones_first

pytest_plugins = ["pytester"]


@pytest.fixture
def run_in_ci(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    def run(code: str, ci: str = "true") -> pytest.RunResult:
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        monkeypatch.setenv("CI", ci)
        monkeypatch.setenv("PET_MAX_RESTARTS", "3")
        monkeypatch.setenv("RANK", "1")
        pytester.makepyfile(code)
        return pytester.runpytest_subprocess("-p", "tests.conftest")

    return run


SKIPPED = "import pytest\n@pytest.mark.skip\ndef test_skipped(): pass\n"


@pytest.mark.parametrize(
    ("code", "ci", "expected"),
    [
        (SKIPPED, "true", pytest.ExitCode.NO_TESTS_COLLECTED),
        (SKIPPED, "", pytest.ExitCode.OK),
        (SKIPPED + "def test_passes(): pass\n", "true", pytest.ExitCode.OK),
        ("", "true", pytest.ExitCode.NO_TESTS_COLLECTED),
    ],
)
def test_ci_does_not_pass_without_a_test(run_in_ci, code, ci, expected) -> None:
    assert run_in_ci(code, ci).ret == expected


def test_the_shell_outside_does_not_reach_the_tests(run_in_ci) -> None:
    result = run_in_ci(
        "import os\ndef test_it(): assert {'RANK', 'PET_MAX_RESTARTS'}.isdisjoint(os.environ)\n"
    )
    result.assert_outcomes(passed=1)


def test_this_process_is_clean() -> None:
    assert not [n for n in os.environ if n.startswith(("PET_", "TORCHELASTIC_", "UNDAUNTED_"))]


def test_long_tests_come_first_each_with_a_short_one_behind_it(pytester: pytest.Pytester) -> None:
    limits = (30, 10, 50, 20, 40)
    code = [f"@pytest.mark.timeout({each})\ndef test_{each}(): pass\n" for each in limits]
    items = pytester.getitems("\n".join(["import pytest", *code, "def test_any(): pass"]))
    names = [item.name.removeprefix("test_") for item in long_ones_first(items)]
    assert names == ["50", "any", "40", "10", "30", "20"]
