from pathlib import Path

from undaunted.cli.configuration import document
from undaunted.fault_tolerance.config import settings

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_page_is_current():
    assert PAGE.read_text() == document(), (
        "run: python -m undaunted.cli.configuration > docs/configuration.md"
    )


def test_page_has_every_setting():
    text = document()
    assert all(f"| `{name}`" in text for name in settings())
