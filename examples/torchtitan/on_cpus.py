"""The program of torchtitan 0.3.0 with `my_model.py`, where there is no GPU: see there."""

import types

import torch
import torch.distributed as dist
from torchtitan.tools import utils

utils.device_type = "cpu"
utils.device_module = types.SimpleNamespace(**vars(torch.cpu))
utils.device_module.current_device = lambda: 0
if not hasattr(dist, "set_timeout"):
    dist.set_timeout = dist.distributed_c10d._set_pg_timeout

import my_model  # torchtitan looks for its device when it is imported
from torch.distributed.fsdp import FSDPModule
from torchtitan.components import metrics
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import parallelize_llama
from torchtitan.train import main


class Memory:
    device_name, device_capacity_gib = "cpu", 1.0

    def get_peak_stats(self):
        return metrics.DeviceMemStats(0.0, 0.0, 0.0, 0.0, 0, 0)

    def reset_peak_stats(self):
        pass


def parallelize(model, **options):
    model = parallelize_llama(model, **options)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
    return model


def small():
    config = my_model.small()
    config.model_spec.parallelize_fn = parallelize
    for layer in config.model_spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    config.parallelism.spmd_backend = "partial_dtensor"
    return config


metrics.build_device_memory_monitor = Memory
if __name__ == "__main__":
    main()
