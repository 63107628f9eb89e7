# Made from names/*.yaml by `make generated`.
"""Calls in a rank that leaves."""

from __future__ import annotations

from undaunted.inprocess.terminate import Terminate as Terminate
