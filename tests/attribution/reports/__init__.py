"""Logs of failures after public reports, labelled before the rules were run on them.

The words are ours; literal are only the messages of programs. A file is a list of cases, one for
each report:

* `source`: the report, OWNER/NAME#NUMBER on GitHub. `open/` and `held/` are told apart by the
  project alone, see `is_held`. Rules are written with `open/` in sight only. Projects of
  `unseen_1/` and the parts after it had no case before; docs/explain-accuracy.md says how many of
  these were right when they were new. Then they came into sight, one after the other.
* `log`: what is left of the job. A line `{NAME ...}` stands for ordinary lines, see `ORDINARY`, or
  for what programs print around a failure, see `AROUND`; what stands before it on the line begins
  each of them.
* `cause`: of `undaunted.attribution.findings.CAUSES`, null = nothing has failed. Of several the
  first is meant, and the others are no mistake: the log allows them.
* `ranks`, `nodes`: who is to blame, where the log says so.
* `exclude`: true where the node is to be left out at once.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
PARTS = (
    "open",
    "held",
    "unseen_1",
    "unseen_2",
    "unseen_3",
    "unseen_4",
    "unseen_5",
    "unseen_6",
    "unseen_7",
)

# By name, lines of a framework while all is well; {n} counts.
ORDINARY = {
    "bar": "{n}%|███▏      | {n}/1000 [00:1{n}<03:11,  5.11it/s, loss=0.3{n}]",
    "hf": "{{'loss': 1.8{n}, 'grad_norm': 0.91, 'learning_rate': 1e-05, 'epoch': 0.1{n}}}",
    "mm": "2025-03-01 10:0{n}:00,123 - mmdet - INFO - Epoch [1][{n}50/7330]\tlr: 1.978e-04, "
    "eta: 1 day, 2:01:22, time: 1.1, data_time: 0.1, memory: 12088, loss: 1.0{n}",
    "d2": "[12/20 18:1{n}:09 d2.utils.events]:  eta: 19:46:55  iter: 49{n}9  total_loss: 10.31  "
    "time: 0.2815  data_time: 0.0115  lr: 2.5e-05  max_mem: 5418M",
    "fairseq": "2024-05-01 10:0{n}:11 | INFO | train_inner | epoch 003:  1{n}00 / 24121 "
    "loss=3.9{n}, ppl=14.7, wps=101212, ups=3.1, lr=0.0003, gnorm=0.4, train_wall=31",
    "megatron": " [2025-03-01 10:0{n}:11] iteration      1{n}0/  500000 | consumed samples: 1200 | "
    "elapsed time per iteration (ms): 811.1 | learning rate: 1.0E-05 | lm loss: 2.1{n}E+00 |",
    "lightning": "Epoch 2:  1{n}%|█▏        | 1{n}/1000 [00:1{n}<03:11,  5.11it/s, v_num=3]",
    "verl": "(TaskRunner pid=1201) step:1{n} - actor/loss:0.3 - timing_s/step:12.0",
    "steps": "step 4{n} loss 1.9{n} lr 0.02",
}
_TRACEBACK = """\
Traceback (most recent call last):
  File "/opt/job/train.py", line 88, in <module>
    main()
  File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1751, in _call_impl
    return forward_call(*args, **kwargs)"""
_TORCHRUN = """\
Traceback (most recent call last):
  File "/opt/venv/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 270, in \
launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2025-03-01_10:09:30
  host      : {host}
  rank      : {rank} (local_rank: {local})
  exitcode  : {code} (pid: 4541)
  error_file: <N/A>
  traceback : {why}
============================================================"""
_DEEPSPEED = (
    "[2025-03-01 10:09:27,885] [ERROR] [launch.py:325:sigkill_handler] ['/opt/venv/bin/python', "
    "'-u', 'train.py', '--local_rank={rank}', '--deepspeed'] exits with return code = {code}"
)
_SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV"}
_MACRO = re.compile(r"^(.*?)\{([a-z]\w*)((?: [\w.-]+)*)\}$", re.MULTILINE)


@dataclass(frozen=True)
class Report:
    """A case; see the module."""

    part: str
    source: str
    log: str
    causes: tuple[str | None, ...]
    ranks: tuple[int, ...] | None
    nodes: tuple[str, ...] | None
    exclude: bool

    @property
    def project(self) -> str:
        """Where it was reported."""
        return self.source.partition("#")[0]


def is_held(project: str) -> bool:
    """Whether cases of a project are held back: by its name, so that nobody has chosen it."""
    return hashlib.sha256(project.lower().encode()).digest()[0] % 2 == 1


def reports(part: str) -> list[Report]:
    """Return all cases of a part."""
    return [
        _report(part, raw)
        for path in sorted((HERE / part).glob("*.yaml"))
        for raw in msgspec.yaml.decode(path.read_text("utf-8"))
    ]


def _report(part: str, raw: dict[str, Any]) -> Report:
    cause = raw["cause"]
    ranks, nodes = raw.get("ranks"), raw.get("nodes")
    return Report(
        part,
        raw["source"],
        _MACRO.sub(_lines, raw["log"]),
        tuple(cause) if isinstance(cause, list) else (cause,),
        None if ranks is None else tuple(ranks),
        None if nodes is None else tuple(nodes),
        raw.get("exclude", False),
    )


def _lines(found: re.Match[str]) -> str:
    before, name, words = found[1], found[2], found[3].split()
    return "\n".join(before + line for line in _said(name, words, found[0]))


def _said(name: str, words: list[str], whole: str) -> Iterator[str]:
    if name == "tb":
        yield from _TRACEBACK.split("\n")
    elif name == "kernel":
        raise ValueError(f"write the lines of the kernel themselves: {whole}")
    elif name == "torchrun":
        rank, code, *place = words
        host, local = place or ("node-a", rank)
        number = -int(code)
        why = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
        if number > 0:
            why = f"Signal {number} ({_SIGNALS[number]}) received by PID 4541"
        text = _TORCHRUN.format(rank=rank, local=local, code=code, host=host, why=why)
        yield from text.split("\n")
    elif name == "deepspeed":
        yield _DEEPSPEED.format(rank=words[0], code=words[1])
    else:
        for n in range(1, 4):
            yield ORDINARY[name].format(n=n)
