"""The schema of the journal is complete."""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING, get_args

import pytest

from scripts.journal_schema import MEANING, PARTS, json_schema
from tests.journal.sample import RUN
from undaunted.journal import events
from undaunted.journal.lines import encode

if TYPE_CHECKING:
    import msgspec

KINDS = [*get_args(events.AnyEvent), *PARTS]


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
