"""The colours of the page's style sheet can be told apart, also by readers who are colour-blind."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from undaunted.journal.page import write
from undaunted.journal.page.markup import base_style
from undaunted.journal.page.timeline import CLASSES

# Least distance in CIE Lab between two classes; 2.3 is said to be just noticeable.
LEAST_APART = 10
LEAST_CONTRAST = 4.5  # of text on its ground (WCAG AA)
# How linear red, green and blue are seen (Machado et al. 2009, severity 1).
SEEN_BY = {
    "everybody else": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopes": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "deuteranopes": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "tritanopes": ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
}
Colour = tuple[float, float, float]


def colours(scheme: str) -> dict[str, Colour]:
    css = base_style() + write._static("style.css")
    found: dict[str, str] = {}
    for indent in ("",) if scheme == "light" else ("", "  "):  # of a media query
        for part in re.findall(rf"^{indent}:root \{{(.*?)\}}", css, re.DOTALL | re.MULTILINE):
            found |= re.findall(r"--([\w-]+): #(\w{6})", part)
    return {name: linear(text) for name, text in found.items()}


def linear(text: str) -> Colour:
    parts = [int(text[k : k + 2], 16) / 255 for k in (0, 2, 4)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return red, green, blue


def seen(colour: Colour, by: str) -> Colour:
    red, green, blue = (
        min(1.0, max(0.0, sum(a * b for a, b in zip(row, colour, strict=True))))
        for row in SEEN_BY[by]
    )
    return red, green, blue


def light(colour: Colour) -> float:
    return 0.2126 * colour[0] + 0.7152 * colour[1] + 0.0722 * colour[2]


def lab(colour: Colour) -> Colour:
    red, green, blue = colour
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089
    x, y, z = (
        t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, light(colour), z)
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("by", SEEN_BY)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_classes_are_told_apart(scheme, by):
    known = colours(scheme)
    labs = {name: lab(seen(known[name], by)) for name in (*CLASSES, "none")}
    apart = {
        (a, b): sum((p - q) ** 2 for p, q in zip(labs[a], labs[b], strict=True)) ** 0.5
        for a, b in combinations(labs, 2)
    }
    assert {pair for pair, distance in apart.items() if distance < LEAST_APART} == set()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(scheme):
    known = colours(scheme)
    pairs = [(known.get(f"on-{name}", known["on-span"]), known[name]) for name in CLASSES]
    pairs += [(known[name], known["panel"]) for name in ("text", "dim", "failure", "good")]
    pairs += [(known["text"], known["band"]), (known["dim"], known["page"])]
    for one, other in pairs:
        low, high = sorted((light(one), light(other)))
        assert (high + 0.05) / (low + 0.05) >= LEAST_CONTRAST
