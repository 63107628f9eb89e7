"""Faults in some ranks of a job, picked by a seed."""

from __future__ import annotations

from undaunted.shared_utils.inject_fault import (
    Fault,
    InjectedException,
    clear_workload_exception,
    dispatch_fault_injection,
    inject_fault,
    maybe_raise_workload_exception,
    register_fault,
)

__all__ = [
    "Fault",
    "InjectedException",
    "clear_workload_exception",
    "dispatch_fault_injection",
    "inject_fault",
    "maybe_raise_workload_exception",
    "register_fault",
]
