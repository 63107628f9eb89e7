"""A program that imports nothing."""

import time

FIRST_LINE_NS = time.monotonic_ns()

from player import play  # noqa: E402 - after the moment that is measured

play(FIRST_LINE_NS)
