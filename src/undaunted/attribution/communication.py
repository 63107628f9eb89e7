"""Tells from a stack whether a thread waits in communication, in what, or what else it does. Pure.

The innermost frames that belong to libraries decide: a thread in `all_reduce` waits for its peers,
one that writes a file further inside does not. What C++ code does without a Python frame (the
``wait`` of an asynchronous collective, ``.item()`` on a device) looks like the user's own line;
`hang` deals with that by comparing ranks.
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING

from undaunted.attribution.stacks import Frame, is_user_code

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Files whose innermost frame means: waiting for peers. The name is what users call it; "" = the
# name of the function users called. First match wins.
_FILES: tuple[tuple[str, str], ...] = (
    (r"torch/distributed/distributed_c10d\.py$", ""),
    (r"torch/distributed/c10d_logger\.py$", ""),
    (r"torch/distributed/rendezvous\.py$", "init_process_group"),
    (r"torch/distributed/device_mesh\.py$", "init_device_mesh"),
    (r"torch/distributed/_functional_collectives\w*\.py$", "wait_tensor"),
    (r"torch/distributed/nn/functional\.py$", ""),
    (r"torch/distributed/algorithms/join\.py$", "Join"),
    (r"torch/distributed/(?:fsdp|_composable)/", "FullyShardedDataParallel"),
    (r"torch/distributed/pipelining/", "pipeline schedule"),
    (r"torch/distributed/rpc/", "rpc"),
    (r"torch/distributed/utils\.py$", ""),
    (r"torch/nn/parallel/distributed\.py$", "DistributedDataParallel"),
    (r"deepspeed/comm/\w+\.py$", ""),
)
_COMPILED = tuple((re.compile(rf"(?:^|/){pattern}"), name) for pattern, name in _FILES)
# Waits for work that was given to a device, collectives included.
_DEVICE = re.compile(r"(?:^|/)torch/(?:cuda|xpu|mtia|accelerator)/(?:__init__|streams)\.py$")
_DEVICE_WAITS = frozenset({"synchronize", "wait_event", "wait_stream", "wait"})
# Layers between a caller and C++ that say nothing.
_THIN = re.compile(r"(?:^|/)torch/(?:_ops|_compile|_dynamo/eval_frame|utils/_contextlib)\.py$")
WAITS_FOR_LOADER = "waiting for the DataLoader"
# What a thread does in a library although it is not waiting for peers, as a person would say it.
COMPILING = "compiling (torch.compile)"
_ACTIVITIES = (
    (re.compile(r"(?:^|/)torch/utils/data/\w+\.py$"), WAITS_FOR_LOADER),
    (re.compile(r"(?:^|/)torch/(?:_dynamo|_inductor)/"), COMPILING),
    (re.compile(r"(?:^|/)torch/(?:distributed/checkpoint/|serialization\.py$)"), "in a checkpoint"),
)
_BACKWARD = ("torch/autograd/graph.py", "_engine_run_backward")
_NOT_A_NAME = frozenset({"wrapper", "?", "<lambda>", "<module>", "forward", "backward"})


def waiting_in(frames: Sequence[Frame], state: str = "S") -> str:
    """Name the communication a thread waits in.

    Args:
        frames: stack of the thread, innermost first.
        state: letter of the process in /proc. It matters for ``backward`` only: a backward pass
            that runs (``R``) computes, one that sleeps waits for gradients of peers.

    Returns:
        For example ``all_reduce``, ``barrier``, ``backward``, ``init_process_group``; "" if the
        thread does not wait in communication, as far as its stack tells.
    """
    inside = _without_thin(frames)
    if not inside:
        return ""
    first = inside[0]
    if first.file.endswith(_BACKWARD[0]) and first.function == _BACKWARD[1]:
        return "backward" if state != "R" else ""
    if _DEVICE.search(first.file):
        return "device synchronization" if first.function in _DEVICE_WAITS else ""
    for pattern, name in _COMPILED:
        if pattern.search(first.file):
            return name or _called(inside) or "communication"
    return ""


def activity_of(frames: Sequence[Frame]) -> str:
    """Say what a thread does between the user's code and where it is, "" if nothing telling."""
    library = list(takewhile(lambda frame: not is_user_code(frame), frames))
    for frame in library:
        for pattern, activity in _ACTIVITIES:
            if pattern.search(frame.file) and not _is_imported(library, pattern):
                return activity
    return ""


def _is_imported(library: Sequence[Frame], pattern: re.Pattern[str]) -> bool:
    """Whether these files run because they are imported: somebody else's import has begun it."""
    outermost = next(frame for frame in reversed(library) if pattern.search(frame.file))
    return outermost.function == "<module>"


def _without_thin(frames: Sequence[Frame]) -> list[Frame]:
    kept = list(frames)
    while kept and _THIN.search(kept[0].file):
        del kept[0]
    return kept


def _called(frames: Iterable[Frame]) -> str:
    """The public function of communication the user's code called: the outermost before it."""
    name = ""
    for frame in frames:
        if is_user_code(frame):
            break
        public = not frame.function.startswith("_") and frame.function not in _NOT_A_NAME
        if public and any(pattern.search(frame.file) for pattern, _ in _COMPILED):
            name = frame.function
    return name
