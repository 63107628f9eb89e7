"""Nested dictionaries and lists."""

from __future__ import annotations

from nvidia_resiliency_ext.checkpointing.utils import dict_list_map_outplace, diff
from undaunted.shared_utils.dict_utils import (
    compare_namespaces,
    compare_state_dicts_and_get_new_values,
    dict_list_map_inplace,
    dict_map,
    dict_map_with_key,
    extract_matching_values,
    inspect_types,
    map_reduce,
    merge,
    merge_namespace_changes,
    merge_namespaces_,
    merge_state_dicts_,
    nested_items_iter,
    nested_values,
)

__all__ = [
    "compare_namespaces",
    "compare_state_dicts_and_get_new_values",
    "dict_list_map_inplace",
    "dict_list_map_outplace",
    "dict_map",
    "dict_map_with_key",
    "diff",
    "extract_matching_values",
    "inspect_types",
    "map_reduce",
    "merge",
    "merge_namespace_changes",
    "merge_namespaces_",
    "merge_state_dicts_",
    "nested_items_iter",
    "nested_values",
]
