# Made from names/*.yaml by `make generated`.
"""Faults in some ranks; the place of versions before 0.6."""

from __future__ import annotations

from nvidia_resiliency_ext.shared_utils.inject_fault import Fault as Fault
from nvidia_resiliency_ext.shared_utils.inject_fault import InjectedException as InjectedException
from nvidia_resiliency_ext.shared_utils.inject_fault import abort as abort
from nvidia_resiliency_ext.shared_utils.inject_fault import async_raise as async_raise
from nvidia_resiliency_ext.shared_utils.inject_fault import (
    async_raise_exception as async_raise_exception,
)
from nvidia_resiliency_ext.shared_utils.inject_fault import (
    clear_workload_exception as clear_workload_exception,
)
from nvidia_resiliency_ext.shared_utils.inject_fault import (
    dispatch_fault_injection as dispatch_fault_injection,
)
from nvidia_resiliency_ext.shared_utils.inject_fault import gpu_sleep as gpu_sleep
from nvidia_resiliency_ext.shared_utils.inject_fault import inject_fault as inject_fault
from nvidia_resiliency_ext.shared_utils.inject_fault import lock_gil as lock_gil
from nvidia_resiliency_ext.shared_utils.inject_fault import (
    maybe_raise_workload_exception as maybe_raise_workload_exception,
)
from nvidia_resiliency_ext.shared_utils.inject_fault import raise_gpu_error as raise_gpu_error
from nvidia_resiliency_ext.shared_utils.inject_fault import register_fault as register_fault
from nvidia_resiliency_ext.shared_utils.inject_fault import segfault as segfault
from nvidia_resiliency_ext.shared_utils.inject_fault import send_signal as send_signal
from nvidia_resiliency_ext.shared_utils.inject_fault import (
    termination_signal_handler as termination_signal_handler,
)
from nvidia_resiliency_ext.shared_utils.inject_fault import workload_exception as workload_exception
