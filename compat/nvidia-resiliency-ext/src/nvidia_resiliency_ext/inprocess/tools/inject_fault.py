"""Faults in some ranks; the place of versions before 0.6."""

from __future__ import annotations

from undaunted.shared_utils.inject_fault import Fault as Fault
from undaunted.shared_utils.inject_fault import InjectedException as InjectedException
from undaunted.shared_utils.inject_fault import clear_workload_exception as clear_workload_exception
from undaunted.shared_utils.inject_fault import dispatch_fault_injection as dispatch_fault_injection
from undaunted.shared_utils.inject_fault import inject_fault as inject_fault
from undaunted.shared_utils.inject_fault import (
    maybe_raise_workload_exception as maybe_raise_workload_exception,
)
from undaunted.shared_utils.inject_fault import register_fault as register_fault
