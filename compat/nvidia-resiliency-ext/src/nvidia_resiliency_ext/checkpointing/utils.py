"""Small tools for states."""

from __future__ import annotations

from undaunted.checkpointing.utils import debug_msg as debug_msg
from undaunted.checkpointing.utils import debug_time as debug_time
from undaunted.checkpointing.utils import dict_list_map_outplace as dict_list_map_outplace
from undaunted.checkpointing.utils import diff as diff
from undaunted.checkpointing.utils import disable_gc
from undaunted.checkpointing.utils import logger_stack as logger_stack
from undaunted.checkpointing.utils import preload_tensors as preload_tensors
from undaunted.checkpointing.utils import wrap_for_async as wrap_for_async

_disable_gc = disable_gc
