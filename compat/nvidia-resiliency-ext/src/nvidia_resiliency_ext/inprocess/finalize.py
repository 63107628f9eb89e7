# Made from names/*.yaml by `make generated`.
"""Calls in every rank after a fault."""

from __future__ import annotations

from undaunted.inprocess.finalize import Finalize as Finalize
from undaunted.inprocess.finalize import ThreadedFinalize as ThreadedFinalize
