# Made from names/*.yaml by `make generated`.
"""Restarts that lead nowhere. Under `undaunted run` the job's coordinator counts that."""

from __future__ import annotations

from undaunted.coordinator.policy.budget import ProgressTracker as ProgressTracker
from undaunted.coordinator.policy.messages import Iterations as Iterations
