"""What docs/huggingface.md shows works."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.docs.test_pages import REPOSITORY, limit_of, work_through

if TYPE_CHECKING:
    from pathlib import Path

PAGE = REPOSITORY / "docs" / "huggingface.md"
pytestmark = [pytest.mark.integration, pytest.mark.e2e, limit_of(PAGE)]


def test_blocks_of_the_page_work_one_after_the_other(tmp_path: Path) -> None:
    work_through(PAGE, tmp_path)
