"""Small helpers for sequences."""

from __future__ import annotations

from undaunted.checkpointing.local.replication.utils import zip_strict as zip_strict
