"""The schema in the documentation is that of the code, and complete."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest

from tests.journal.sample import RUN
from undaunted.journal import events
from undaunted.journal.lines import encode
from undaunted.journal.schema import PARTS, json_schema, page
from undaunted.journal.schema_words import MEANING

if TYPE_CHECKING:
    import msgspec

DOCS = Path(__file__).parents[2] / "docs"
KINDS = [*get_args(events.AnyEvent), *PARTS]


def test_the_page_is_up_to_date() -> None:
    assert (DOCS / "journal-schema.md").read_text() == page(), (
        "run: python -m undaunted.journal.schema > docs/journal-schema.md"
    )


def test_the_json_schema_is_up_to_date() -> None:
    assert (DOCS / "journal-schema.json").read_text() == json_schema(), (
        "run: python -m undaunted.journal.schema --json > docs/journal-schema.json"
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_field_is_explained(kind: type[msgspec.Struct]) -> None:
    text = inspect.getdoc(kind) or ""
    for name in set(kind.__struct_fields__) - set(events.Event.__struct_fields__):
        explained = f"``{name}``" in text or f"{name}: " in text or name in MEANING
        assert explained, f"say in the docstring of {kind.__name__} what {name} is"


def test_no_word_is_explained_that_nobody_uses() -> None:
    assert set(MEANING) <= {name for kind in KINDS for name in kind.__struct_fields__}


def test_lines_of_a_journal_are_as_the_schema_says() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(json.loads(json_schema()))
    for event in RUN:
        validator.validate(json.loads(encode(event)))
    assert list(validator.iter_errors({"event": "verdict", "t": "now"}))
