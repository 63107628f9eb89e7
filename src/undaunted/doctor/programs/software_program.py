"""Prints which software there is; a separate program, since imports may hang or crash.

    python software_program.py PARENT

Prints lines of JSON, ``{"versions": {...}}``, and what importing torch has added at the end, so
that it counts as far as it came.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from importlib import metadata

_PR_SET_PDEATHSIG = 1
# Name of the distribution to name of the component.
_DISTRIBUTIONS = {
    "torch": "torch",
    "nvidia-nccl-cu11": "nccl",
    "nvidia-nccl-cu12": "nccl",
    "nvidia-nccl-cu13": "nccl",
    "pytorch-lightning": "lightning",
    "lightning": "lightning",
    "megatron-core": "megatron-core",
    "transformer-engine": "transformer-engine",
    "nvidia-resiliency-ext": "nvidia-resiliency-ext",
}
_OURS = "+undaunted"


def installed() -> dict[str, str]:
    """Versions of distributions."""
    found = {}
    for name, component in _DISTRIBUTIONS.items():
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        # None where the record is damaged; ours under the name of another has its bugs no more.
        if isinstance(version, str) and _OURS not in version:
            found[component] = version
    return found


def imported() -> dict[str, str]:
    """The facts that torch has of itself, and of NCCL as it is loaded."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name == "torch":
            return {}
        raise
    found = {"torch": str(torch.__version__)}
    if torch.version.cuda:
        found["cuda"] = str(torch.version.cuda)
    if torch.distributed.is_available() and torch.distributed.is_nccl_available():
        from torch.cuda import nccl

        version = nccl.version()
        found["nccl"] = ".".join(str(part) for part in version[:3])
    return found


def main() -> None:
    """Print what there is."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        return
    sys.path.pop(0)  # this folder, whose modules are no business of torch
    for step in (installed, imported):
        print(json.dumps({"versions": step()}), flush=True)


if __name__ == "__main__":
    main()
