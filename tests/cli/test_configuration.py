from undaunted.cli.configuration import document
from undaunted.fault_tolerance.config import settings


def test_page_has_every_setting():
    text = document()
    assert all(f"| `{name}`" in text for name in settings())
