# Made from names/*.yaml by `make generated`.
"""Lines that tell a launcher above how a restart inside the process goes."""

from __future__ import annotations

from undaunted.inprocess.nested_restarter import NestedRestarterAborted as NestedRestarterAborted
from undaunted.inprocess.nested_restarter import NestedRestarterCallback as NestedRestarterCallback
from undaunted.inprocess.nested_restarter import (
    NestedRestarterFinalized as NestedRestarterFinalized,
)
from undaunted.inprocess.nested_restarter import (
    NestedRestarterHandlingCompleted as NestedRestarterHandlingCompleted,
)
from undaunted.inprocess.nested_restarter import (
    NestedRestarterHandlingStarting as NestedRestarterHandlingStarting,
)
from undaunted.inprocess.nested_restarter import NestedRestarterLogger as NestedRestarterLogger
