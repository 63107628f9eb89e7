"""The literals that a line needs, in their order, to fit a regular expression. Pure.

A cheap test of templates: most lines that have one literal of a rule lack the others.
"""

from __future__ import annotations

import re
from typing import TypeAlias

# A text, or sequences of which one is needed.
_Part: TypeAlias = "str | list[list[_Part]]"

_TOKEN = re.compile(
    r"""
      (?P<class>\[\^?\]?(?:\\.|[^\]\\])*\]|\\[wWdDsS]|\.)
    | (?P<edge>\\[bB]|\^|\$)
    | (?P<look>\(\?<?[!=])
    | (?P<open>\((?!\?)|\(\?(?:P<\w+>|[a-z]*-?[a-z]*:))
    | (?P<close>\))
    | (?P<or>\|)
    | (?P<count>(?:\{(?P<least>\d*),?\d*\}|[*+?])[?+]?)
    | (?P<literal>\\[^\w]|[^\\\w(]|[^\W\d])
    | (?P<left_out>\d)
    """,
    re.VERBOSE | re.DOTALL,
)
_ANYTHING = "\0"  # ends a text


class Literals:
    """The literals of templates of which lines an expression fits."""

    def __init__(self, expression: str) -> None:
        """Read it; of one that is not understood, or that needs no literal, nothing is needed."""
        self._tokens: list[re.Match[str]] = []
        place = 0
        while place < len(expression):
            token = _TOKEN.match(expression, place)
            if token is None:
                break
            self._tokens.append(token)
            place = token.end()
        self._tokens.reverse()
        self._choices = self._read_choices() if place == len(expression) else []
        self._tokens.clear()

    def are_in(self, template: str) -> bool:
        """Return whether the expression may fit a line with this template."""
        return not self._choices or _end(self._choices, template, 0) >= 0

    def _read_choices(self) -> list[list[_Part]]:
        """Read to the end of a group; return nothing if one of its choices needs nothing."""
        choices: list[list[_Part]] = []
        atoms: list[_Part] = []
        tokens = self._tokens
        while tokens:
            token = tokens.pop()
            kind, text = token.lastgroup, token[0]
            if kind == "close":
                break
            if kind == "or":
                choices.append(_joined(atoms))
                atoms = []
            elif kind == "look":
                self._read_choices()
                atoms.append("")
            elif kind == "open":
                atoms.append(self._read_choices() or _ANYTHING)
            elif kind == "count":
                least = token["least"]
                is_needed = int(least or 0) > 0 if least is not None else text[0] == "+"
                atoms[-1:] = [atoms[-1], _ANYTHING] if is_needed else [_ANYTHING]
            elif kind == "class":
                atoms.append(_ANYTHING)
            else:
                literal = text[-1].lower() if kind == "literal" else ""
                atoms.append("" if literal.isspace() else literal)
        choices.append(_joined(atoms))
        return choices if all(choices) else []


def _joined(atoms: list[_Part]) -> list[_Part]:
    """Join texts with nothing between them."""
    joined: list[_Part] = []
    text = ""
    for atom in [*atoms, _ANYTHING]:
        if isinstance(atom, str) and atom != _ANYTHING:
            text += atom
            continue
        if text:
            joined.append(text)
            text = ""
        if isinstance(atom, list):
            joined.append(atom)
    return joined


def _end(choices: list[list[_Part]], template: str, begin: int) -> int:
    """Return the first place where one of the choices may end, -1 = none is there."""
    ends = []
    for sequence in choices:
        place = begin
        for one in sequence:
            if isinstance(one, str):
                found = template.find(one, place)
                place = found + len(one) if found >= 0 else -1
            else:
                place = _end(one, template, place)
            if place < 0:
                break
        else:
            ends.append(place)
    return min(ends, default=-1)
