"""The meaning of an exception: by its class and frames first, then by its words. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from undaunted.attribution.logs.general import is_of_http, of_exception
from undaunted.attribution.logs.rules import Meaning
from undaunted.attribution.peers import is_of_a_socket, raised_in_communication

if TYPE_CHECKING:
    from undaunted.attribution.logs.rules import Meaning as Words

_HEAD = "Traceback (most recent call last):\n"
_OF_PROGRAM = 0.7  # confidence
_GUESSED = 0.5  # of a rule: such words, and not what they say
_LESS_SURE = 0.55
_LAST_LINE = re.compile(r"(?P<kind>[A-Za-z_]\w*(?:\.\w+){0,12})(?:: (?P<message>.*)|:?\s*$)")
# Ends of tasks and programs that nobody calls an error, and of loops whose end is mostly handled.
_NO_ERRORS = frozenset({"CancelledError", "GeneratorExit"})
_OF_LOOPS = frozenset({"StopIteration", "StopAsyncIteration"})
_SOCKETS = frozenset({"timeout", "EOFError"})
_OF_NUMBERS = re.compile(r"\bassert\b.{0,200}\bis_?(?:finite|nan|inf)\b")  # a line of source
_OF_SAMPLES = re.compile(r", in __getitem__$", re.MULTILINE)  # a frame: of a data set
_OF_CONNECTIONS = frozenset({"peer_lost", "rendezvous_failed", "network_setup"})
_LAST_LINES = 600  # characters of the frames


def last_line(text: str) -> tuple[str, str] | None:
    """Return class and message, if a line has the form of the last one of a traceback."""
    found = _LAST_LINE.match(text)
    return (found["kind"], found["message"] or "") if found else None


def meaning_of(kind: str, message: str, traceback: str, words: Words | None) -> Meaning | None:
    """Return what an exception means, None: nothing has failed.

    Args:
        kind: its class, as the traceback has it.
        message: its first line.
        traceback: lines of the frames, "" = not known.
        words: what a rule says of the line.
    """
    name = kind.rpartition(".")[2]
    if name in _NO_ERRORS or name.endswith("Warning"):
        return None
    if name == "SystemExit" and message in {"", "0", "None"}:
        return None
    if (
        name == "AssertionError"
        and (words is None or words.cause == "program_error")
        and _OF_NUMBERS.search(traceback[-_LAST_LINES:])
    ):
        return Meaning("not_finite", _OF_PROGRAM)
    if is_vague(words) and (general := of_exception(kind, message, traceback)) is not None:
        return general
    if words is None:
        return Meaning("program_error", _LESS_SURE if name in _OF_LOOPS else _OF_PROGRAM)
    if words.cause == "checkpoint_mismatch" and _OF_SAMPLES.search(traceback[-_LAST_LINES:]):
        return Meaning("data_error", _OF_PROGRAM)
    if words.cause in _OF_CONNECTIONS and is_of_http(traceback):
        return Meaning("network_error", _LESS_SURE)
    of_socket = is_of_a_socket(name) or name in _SOCKETS
    if (
        words.cause == "peer_lost"
        and of_socket
        and not raised_in_communication(f"{_HEAD}{traceback}")
    ):
        return Meaning("program_error", _OF_PROGRAM)
    return words


def is_vague(words: Words | None) -> bool:
    """Return whether a rule knows an exception only as one of any kind."""
    if words is None:
        return True
    if words.cause == "program_error":
        return not words.certain and words.message is None
    return words.cause == "peer_lost" and words.confidence <= _GUESSED
