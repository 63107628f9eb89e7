"""Slow ranks are found."""

from __future__ import annotations

from undaunted.integrations.lightning.straggler import (
    StragglerDetectionCallback as StragglerDetectionCallback,
)
