from __future__ import annotations

import pytest

from undaunted.attribution.communication import activity_of, waiting_in
from undaunted.attribution.stacks import Frame, parse_last_dump

from .samples import sample


def frames_of(name: str) -> tuple[Frame, ...]:
    dump = parse_last_dump(sample(name))
    assert dump is not None
    assert dump.main is not None
    return dump.main.frames


@pytest.mark.parametrize(
    ("name", "waits_in"),
    [
        ("allreduce-rank0", "all_reduce"),
        ("barrier-rank0", "barrier"),
        ("object-rank0", "all_gather_object"),
        ("ddp-rank0", "DistributedDataParallel"),
        ("backward-rank0", "backward"),
        ("fc-rank0", "wait_tensor"),
        ("init-rank0", "init_process_group"),
        ("loader-rank0", "all_reduce"),
        ("allreduce-rank1", ""),
        ("loader-rank1", ""),
        # C++ without a Python frame looks like the user's own line.
        ("asyncwait-rank0", ""),
        ("store-rank0", ""),
    ],
)
def test_real_stacks(name: str, waits_in: str) -> None:
    assert waiting_in(frames_of(name)) == waits_in


def test_a_backward_pass_that_runs_computes() -> None:
    assert waiting_in(frames_of("backward-rank0"), state="R") == ""


TORCH = "/opt/venv/lib/python3.11/site-packages/torch"


@pytest.mark.parametrize(
    ("file", "function", "waits_in"),
    [
        ("distributed/fsdp/_flat_param.py", "wait_stream", "FullyShardedDataParallel"),
        ("distributed/_composable/fsdp/_param_group.py", "unshard", "FullyShardedDataParallel"),
        ("distributed/pipelining/schedules.py", "_step", "pipeline schedule"),
        ("cuda/__init__.py", "synchronize", "device synchronization"),
        ("cuda/__init__.py", "_lazy_init", ""),
        ("cuda/streams.py", "synchronize", "device synchronization"),
        ("distributed/checkpoint/filesystem.py", "write_data", ""),
        ("distributed/elastic/agent/server/api.py", "run", ""),
        ("autograd/graph.py", "saved_tensors_hooks", ""),
        ("nn/modules/linear.py", "forward", ""),
    ],
)  # fmt: skip
def test_by_the_innermost_frame(file: str, function: str, waits_in: str) -> None:
    assert waiting_in([Frame(f"{TORCH}/{file}", 1, function)]) == waits_in


def test_a_private_function_alone_still_counts_as_communication() -> None:
    frame = Frame(f"{TORCH}/distributed/distributed_c10d.py", 1, "_store_based_barrier")
    assert waiting_in([frame]) == "communication"


def test_no_frames() -> None:
    assert waiting_in([]) == ""
    assert activity_of([]) == ""


def test_activities() -> None:
    assert activity_of(frames_of("loader-rank1")) == "waiting for the DataLoader"
    assert activity_of(frames_of("allreduce-rank1")) == ""
    user = Frame("/home/user/train.py", 1, "main")
    writer = Frame(f"{TORCH}/distributed/checkpoint/filesystem.py", 1, "write_data")
    assert activity_of([writer, user]) == "in a checkpoint"
    assert activity_of([user, writer]) == ""


def test_an_import_of_the_compiler_is_no_compilation() -> None:
    user = Frame("/home/user/train.py", 1, "<module>")
    transformers = Frame("/opt/venv/lib/python3.11/site-packages/transformers/x.py", 1, "<module>")
    importing = Frame("<frozen importlib._bootstrap>", 1, "_find_and_load")
    module = Frame(f"{TORCH}/_dynamo/trace_rules.py", 1, "<module>")
    helper = Frame(f"{TORCH}/_dynamo/trace_rules.py", 9, "load_object")
    compiler = Frame(f"{TORCH}/_dynamo/eval_frame.py", 9, "compile_wrapper")
    assert activity_of([helper, module, importing, transformers, importing, user]) == ""
    assert activity_of([helper, user]) == "compiling (torch.compile)"
    late_import = [helper, module, importing, compiler, user]
    assert activity_of(late_import) == "compiling (torch.compile)"
