"""What makes a function restartable, and one call of it."""

from __future__ import annotations

from undaunted.inprocess.wrap import CallWrapper as CallWrapper
from undaunted.inprocess.wrap import Wrapper as Wrapper
