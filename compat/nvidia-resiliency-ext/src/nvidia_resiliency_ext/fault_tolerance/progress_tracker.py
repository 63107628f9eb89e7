"""Whether restarts lead anywhere. Under `undaunted run` the job's coordinator counts that."""

from __future__ import annotations

from undaunted.coordinator.core.progress import Iterations, ProgressTracker

__all__ = ["Iterations", "ProgressTracker"]
