"""torchtitan 0.3.0 where there is no GPU: it takes one for granted. Import this before it.

Replaced are the device (CPU, gloo), what is printed of its memory, a name of a newer torch, and a
reduction that gloo does not have. All else is torchtitan's.
"""

import types

import torch
import torch.distributed as dist
from torchtitan.tools import utils

utils.device_type = "cpu"
utils.device_module = types.SimpleNamespace(**vars(torch.cpu))
utils.device_module.current_device = lambda: 0
if not hasattr(dist, "set_timeout"):
    dist.set_timeout = dist.distributed_c10d._set_pg_timeout

import torchtitan.train  # noqa: E402, F401 - imports nearly all of it
from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torchtitan.components import metrics  # noqa: E402
from torchtitan.models.llama3 import parallelize_llama  # noqa: E402


class NoMemory:
    device_name = "cpu"
    device_capacity_gib = 1.0

    def get_peak_stats(self):
        return metrics.DeviceMemStats(0.0, 0.0, 0.0, 0.0, 0, 0)

    def reset_peak_stats(self):
        pass


metrics.build_device_memory_monitor = NoMemory


def parallelize(model, **options):
    model = parallelize_llama(model, **options)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
    return model
