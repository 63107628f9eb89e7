# Made from names/*.yaml by `make generated`.
"""Several plug-ins as one."""

from __future__ import annotations

from undaunted.inprocess.compose import Compose as Compose
from undaunted.inprocess.compose import find_common_ancestor as find_common_ancestor
