# Made from names/*.yaml by `make generated`.
"""Calls when all ranks have completed the function."""

from __future__ import annotations

from undaunted.inprocess.completion import Completion as Completion
