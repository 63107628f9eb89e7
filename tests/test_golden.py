"""Golden files are compared, and written where that is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]


@pytest.mark.parametrize(
    ("content", "words", "passed"),
    [("new\n", [], 1), ("old\n", [], 0), (None, [], 0), ("old\n", ["--update"], 1),
     (None, ["--update"], 1)],
)  # fmt: skip
def test_a_text_that_differs(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    content: str | None,
    words: list[str],
    passed: int,
) -> None:
    file = pytester.path / "words.txt"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    pytester.makepyfile(f"""
        from pathlib import Path
        def test_words(golden):
            golden(Path({str(file)!r}), "new\\n")
    """)
    result = pytester.runpytest_subprocess("-p", "tests.golden", "-p", "no:randomly", *words)
    result.assert_outcomes(passed=passed, failed=1 - passed)
    assert not passed or file.read_text() == "new\n"
