# Made from names/*.yaml by `make generated`.
"""Whether restarts lead anywhere. Under `undaunted run` the job's coordinator counts that."""

from __future__ import annotations

from undaunted.coordinator.policy.budget import ProgressTracker as ProgressTracker
from undaunted.coordinator.policy.messages import Iterations as Iterations
