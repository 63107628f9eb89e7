"""The line that each program ends with: how many steps, and a digest of its parameters."""

import hashlib
import os
import platform
from pathlib import Path

import torch

# Without instructions for it torch takes 50 times as long for bf16 as for float32.
BF16 = platform.machine() != "x86_64" or "avx512" in Path("/proc/cpuinfo").read_text()


def print_result(model, steps):
    """All ranks call it; rank 0 prints."""
    digest, count = hashlib.sha256(), 0
    for name, tensor in sorted(model.state_dict().items()):
        if not isinstance(tensor, torch.Tensor):
            continue
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        digest.update(name.encode())
        digest.update(whole.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        count += whole.numel()
    if os.environ.get("RANK", "0") == "0":
        words = f"steps={steps} numbers={count} hash={digest.hexdigest()[:16]}"
        print(f"RESULT {words}", flush=True)
