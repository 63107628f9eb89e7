# Made from names/*.yaml by `make generated`.
"""Calls at the beginning of an iteration."""

from __future__ import annotations

from undaunted.inprocess.initialize import Initialize as Initialize
from undaunted.inprocess.initialize import RetryController as RetryController
