"""What processes of tests have printed."""

from __future__ import annotations


def lines_of(text: str) -> list[str]:
    """Return its lines, without those that gloo of torch 2.8 prints by itself."""
    return [line for line in text.splitlines() if not line.startswith("[Gloo]")]
