# Made from names/*.yaml by `make generated`.
"""Aborts of communication when an iteration is over."""

from __future__ import annotations

from undaunted.inprocess.abort import Abort as Abort
from undaunted.inprocess.abort import (
    AbortPersistentCheckpointProcesses as AbortPersistentCheckpointProcesses,
)
from undaunted.inprocess.abort import AbortTorchDistributed as AbortTorchDistributed
from undaunted.inprocess.abort import AbortTransformerEngine as AbortTransformerEngine
