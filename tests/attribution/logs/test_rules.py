from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from undaunted.attribution.findings import CAUSES
from undaunted.attribution.logs.rules import FILE, Rules, read_rules, rules, template

try:
    from re import _parser as parser  # type: ignore[attr-defined]
except ImportError:
    import sre_parse as parser

TABLE: dict[str, Any] = yaml.safe_load(FILE.read_text())
EXPRESSIONS = [
    TABLE["harmless"],
    TABLE["not_steps"],
    TABLE["ends"]["line"],
    *TABLE["steps"]["lines"],
    *(row[key] for row in TABLE["rules"] for key in ("line", "unless") if key in row),
]
SAID = [
    (
        "gpu_lost",
        "kernel: NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', GPU has fallen off the bus.",
    ),
    (
        "gpu_memory_error",
        "NVRM: Xid (PCI:0000:1b:00): 48, pid=20311, name=python3, An uncorrectable",
    ),
    ("gpu_memory_error", "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
    ("nvlink_error", "NVRM: Xid (PCI:0000:3b:00): 74, NVLink: fatal error detected on link 14"),
    (
        "gpu_firmware",
        "NVRM: Xid (PCI:0000:57:00): 119, Timeout after 6s of waiting for RPC response",
    ),
    ("node_failed", "srun: error: Node failure on nf-015"),
    ("preempted", "*** JOB 1 ON n1 CANCELLED AT 2026-11-22T10:00:00 DUE TO PREEMPTION ***"),
    ("time_limit", "*** JOB 1 ON n1 CANCELLED AT 2026-11-22T10:00:00 DUE TO TIME LIMIT ***"),
    ("cancelled", "*** JOB 1 ON n1 CANCELLED AT 2026-11-22T10:00:00 ***"),
    ("terminated", "*** STEP 1.0 ON n1 CANCELLED AT 2026-11-22T10:00:00 ***"),
    ("host_out_of_memory", "Out of memory: Killed process 4711 (python)"),
    ("host_out_of_memory", "OSError: [Errno 28] No space left on device: '/dev/shm/torch_17'"),
    ("gpu_out_of_memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"),
    ("disk_full", "OSError: [Errno 28] No space left on device: '/tmp/x'"),
    ("quota_exceeded", "OSError: [Errno 122] Disk quota exceeded"),
    ("storage_error", "OSError: [Errno 116] Stale file handle: '/nfs/x'"),
    ("checkpoint_mismatch", "RuntimeError: Error(s) in loading state_dict for GPT:"),
    ("device_fault", "RuntimeError: CUDA error: an illegal memory access was encountered"),
    ("not_finite", "ValueError: loss is nan at step 3"),
    ("collective_timeout", "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL("),
    ("peer_lost", "ncclRemoteError: A call failed possibly due to a network error"),
    ("network_error", "NCCL WARN NET/IB : mlx5_1:1 Got async event : port error"),
    (
        "rendezvous_failed",
        "DistStoreError: Timed out after 601 seconds waiting for clients. 8/16 clients",
    ),
    ("native_crash", "Fatal Python error: Segmentation fault"),
    ("program_error", "ModuleNotFoundError: No module named 'apex'"),
    ("program_error", "ValueError: not enough heads"),
    ("terminated", "E1122 api.py:882] failed (exitcode: 1) local_rank: 3"),
]
HARMLESS = [
    "nvidia-smi: Volatile Uncorrectable ECC Errors: 0",
    "dcgm: ECC volatile SBE 12, DBE 0; remapped rows pending: No, failed: No",
    "EDAC MC0: 1 CE memory read error on CPU_SrcID#0",
    "pcieport 0000:16:02.0: AER: Corrected error received: 0000:17:00.0",
    "{'eval_error': 0.0123, 'epoch': 0.31}",
    "word error: 0.1191",
    "NVRM: Xid (PCI:0000:01:00): 45, pid=1, Ch 00000010",
    "OSError: [Errno 5] Input/output error, retrying in 5 s",
    "found NaN in gradients, skipping this step",
    "  preemption_grace_s ............................. 60",
    "  exit_on_missing_checkpoint ..................... True",
    "NCCL INFO Using network IB",
    "oom_kill 0",
]


def meaning_of(line: str) -> str | None:
    known: Rules = rules()
    numbers = known.search([template(line.encode())])
    if not numbers:
        return None
    meaning = known.meaning(line, 0, *numbers.values(), ends_traceback=False)
    return meaning.cause if meaning else None


@pytest.mark.parametrize(("cause", "line"), SAID)
def test_what_a_line_means(cause: str, line: str) -> None:
    assert meaning_of(line) == cause


@pytest.mark.parametrize("line", HARMLESS)
def test_what_frightens_and_is_harmless(line: str) -> None:
    assert meaning_of(line) is None


def test_lines_name_ranks_and_nodes() -> None:
    line = "srun: error: node-12: tasks 3,8-10: Out Of Memory"
    (numbers,) = rules().search([template(line.encode())]).values()
    meaning = rules().meaning(line, 0, numbers, ends_traceback=False)
    assert meaning is not None
    assert (meaning.ranks, meaning.nodes) == ((3, 8, 9, 10), ("node-12",))


def test_all_causes_that_logs_can_show_have_a_rule() -> None:
    shown = {row["cause"] for row in TABLE["rules"]} | set(TABLE["xids"])
    of_others = {"device_lag", "host_lag", "no_dump", "unexplained"}
    assert shown == set(CAUSES) - of_others


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_no_expression_can_take_exponential_time(expression: str) -> None:
    assert not nested(parser.parse(expression, re.IGNORECASE), repeated=False)


def nested(parsed: Any, *, repeated: bool) -> bool:
    """Whether what has no fixed length is repeated inside of what is repeated without a bound."""
    for kind, value in parsed:
        name = str(kind)
        if name in {"MAX_REPEAT", "MIN_REPEAT"}:
            _, most, inside = value
            if repeated and most > 1:
                return True
            if nested(inside, repeated=repeated or most > 20):
                return True
        elif (
            (name == "SUBPATTERN" and nested(value[-1], repeated=repeated))
            or (name == "BRANCH" and any(nested(one, repeated=repeated) for one in value[1]))
            or (name in {"ASSERT", "ASSERT_NOT"} and nested(value[1], repeated=repeated))
        ):
            return True
    return False


@pytest.mark.parametrize("expression", ["(a+)+", "(a|b*)*c", "(?:x{1,30}y?){1,50}"])
def test_the_check_knows_such_expressions(expression: str) -> None:
    assert nested(parser.parse(expression), repeated=False)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("cause: gpu_lost", "cause: gpu_stolen", "gpu_stolen"),
        ('"fallen off the bus"', '"79"', "79"),
        ("confidence: 0.95", "confidense: 0.95", "confidense"),
        ("harmless: '", "harmless: '(", "rules.yaml"),
    ],
)
def test_a_bad_table_is_refused_with_the_reason(old: str, new: str, told: str) -> None:
    text = FILE.read_text().replace(old, new, 1)
    with pytest.raises(ValueError, match=told):
        read_rules(text)
