"""One event as one line of JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from undaunted.journal.events import AnyEvent, Event

# Longest line, with its line feed, in bytes. Writers keep to it; readers skip what is longer.
MAX_LINE = 1 << 20
# What is left of each string and each list of an event that would be longer than that.
_KEEP_CHARACTERS = 4096
_KEEP_ITEMS = 4096

_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


def encode(event: Event) -> bytes:
    """Return the line of ``event``, line feed included.

    Text that is not valid Unicode (undecodable bytes of an argument, say) is written with escapes.
    An event that would be too long for a line keeps the beginnings of its texts and lists.

    Raises:
        ValueError: the event does not fit in a line, even shortened.
        TypeError: the event holds something JSON cannot express.
    """
    try:
        line = msgspec.json.encode(event)
    except UnicodeEncodeError:
        line = msgspec.json.encode(_tame(msgspec.to_builtins(event), MAX_LINE))
    if len(line) >= MAX_LINE:
        line = msgspec.json.encode(_tame(msgspec.to_builtins(event), _KEEP_CHARACTERS))
    if len(line) >= MAX_LINE:
        raise ValueError(f"an event of {len(line)} bytes does not fit in a line of {MAX_LINE}")
    return line + b"\n"


def decode(line: bytes) -> AnyEvent:
    """Return the event of one line; fields this build does not know are ignored.

    Raises:
        msgspec.DecodeError: the line is not an event this build knows.
    """
    return _decoder.decode(line)


def decode_lines(lines: bytes) -> list[AnyEvent]:
    """Return the events of several lines, which takes a fraction of the time.

    Raises:
        msgspec.DecodeError: one of the lines is not an event this build knows.
    """
    return _decoder.decode_lines(lines)


def _tame(value: Any, longest: int) -> Any:
    """Return a copy that can be encoded: escaped strings and lists of limited length."""
    if isinstance(value, str):
        text = value.encode("utf-8", "backslashreplace").decode("utf-8")
        return text if len(text) <= longest else f"{text[:longest]}... ({len(text)} characters)"
    if isinstance(value, dict):
        return {_tame(key, longest): _tame(item, longest) for key, item in value.items()}
    if isinstance(value, list):
        kept = value if longest == MAX_LINE else value[:_KEEP_ITEMS]
        return [_tame(item, longest) for item in kept]
    return value
