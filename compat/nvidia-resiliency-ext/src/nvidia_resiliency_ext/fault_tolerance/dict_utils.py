# Made from names/*.yaml by `make generated`.
"""Nested dictionaries and lists."""

from __future__ import annotations

from nvidia_resiliency_ext.checkpointing.utils import (
    dict_list_map_outplace as dict_list_map_outplace,
)
from nvidia_resiliency_ext.checkpointing.utils import diff as diff
from undaunted.shared_utils.dict_utils import compare_namespaces as compare_namespaces
from undaunted.shared_utils.dict_utils import (
    compare_state_dicts_and_get_new_values as compare_state_dicts_and_get_new_values,
)
from undaunted.shared_utils.dict_utils import dict_list_map_inplace as dict_list_map_inplace
from undaunted.shared_utils.dict_utils import dict_map as dict_map
from undaunted.shared_utils.dict_utils import dict_map_with_key as dict_map_with_key
from undaunted.shared_utils.dict_utils import extract_matching_values as extract_matching_values
from undaunted.shared_utils.dict_utils import inspect_types as inspect_types
from undaunted.shared_utils.dict_utils import map_reduce as map_reduce
from undaunted.shared_utils.dict_utils import merge as merge
from undaunted.shared_utils.dict_utils import merge_namespace_changes as merge_namespace_changes
from undaunted.shared_utils.dict_utils import merge_namespaces_ as merge_namespaces_
from undaunted.shared_utils.dict_utils import merge_state_dicts_ as merge_state_dicts_
from undaunted.shared_utils.dict_utils import nested_items_iter as nested_items_iter
from undaunted.shared_utils.dict_utils import nested_values as nested_values
