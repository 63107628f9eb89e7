"""What docs/torchtitan.md shows works."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.docs.test_pages import REPOSITORY, work_through

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.e2e, pytest.mark.timeout(600)]


def test_blocks_of_the_page_work_one_after_the_other(tmp_path: Path) -> None:
    work_through(REPOSITORY / "docs" / "torchtitan.md", tmp_path)
