"""What tests of commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from undaunted.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command of undaunted in this process; return all that it prints."""

    def run(*words: object, code: int = 0) -> str:
        assert main([str(word) for word in words]) == code
        return "".join(capsys.readouterr())

    return run
