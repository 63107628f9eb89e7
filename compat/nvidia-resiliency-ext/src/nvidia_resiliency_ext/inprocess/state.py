"""What a rank is in an iteration."""

from __future__ import annotations

from undaunted.inprocess.state import FrozenState as FrozenState
from undaunted.inprocess.state import Mode as Mode
from undaunted.inprocess.state import State as State
