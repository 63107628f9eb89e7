# Made from names/*.yaml by `make generated`.
"""The reasons for the interruption of an iteration."""

from __future__ import annotations

from undaunted.inprocess.attribution import Interruption as Interruption
from undaunted.inprocess.attribution import InterruptionRecord as InterruptionRecord
from undaunted.inprocess.attribution import (
    format_interruption_records as format_interruption_records,
)
