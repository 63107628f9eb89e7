"""The meaning of words that no rule knows: by the thing and the trouble that they tell of. Pure.

Rules have the messages of programs. A program that no rule knows has other words, but a collective
that times out is one in any of them. These readings are less sure than any rule.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from undaunted.attribution.logs.rules import Meaning, ended

_PROBABLY = 0.55  # confidence: of an exception
_PERHAPS = 0.4  # of any other line
_LONGEST = 1000  # characters of a message
_TIME = (
    "time out|times out|timed out|timeout|timeouts|deadline|expired|hang|hangs|hung|hanging|stuck"
    "|stall|stalled|not respond|not responding|no response|not complete|not completed|not finish"
    "|not finished|not return|too long"
)
_GONE = (
    "lost|gone|disconnect|disconnected|closed|reset|refused|unreachable|dead|died|dropped|aborted"
    "|broken pipe|unavailable"
)
_NOT_MET = (
    "refused|unreachable|in use|occupied|not connect|unable to connect|cannot connect"
    "|failed to connect|not reach|cannot reach|not resolve|failed to resolve|failed to bind"
    "|failed to join|not join|not joined|failed to initialize|failed to register"
)
_COLLECTIVES = (
    "collective|collectives|all reduce|allreduce|all gather|allgather|reduce scatter|broadcast"
    "|barrier|all to all|alltoall|nccl|rccl|hccl|gloo|process group|communicator|irecv|isend"
)
_MEETINGS = (
    "rendezvous|rdzv|tcp store|store|master|coordinator|init process group|init distributed"
    "|head node|bootstrap|port|world|workers|nodes|peers"
)
_DEVICES = (
    "device|devices|gpu|gpus|cuda|hip|rocm|npu|xpu|hpu|tpu|level zero|sycl|cublas|cublaslt|cudnn"
    "|cufft|cusolver|cusparse|hipblas|rocblas|miopen|kernel launch|acl|synapse|metal|mps"
)
_NO_MEMORY = (
    "out of memory|oom|alloc failed|allocation failed|failed to allocate|cannot allocate"
    "|unable to allocate|could not allocate|insufficient memory|not enough memory"
    "|memory exhausted|failed to alloc"
)
_BROKEN = "fault|lost|abort|aborted|violation|reset|crash|crashed|illegal|unresponsive"
# A thing, a trouble, and what else the words must not say; the first that fits is meant.
_TABLE = (
    (
        "not_finite",
        (
            "loss|losses|grad|grads|gradient|gradients|norm|weight|weights|param|parameter|parameters"
            "|activation|activations|logits|probs|probability|output|outputs|value|values|tensor|scale"
            "|reward|advantage|std|training"
        ),
        (
            "nan|nans|inf|infs|infinite|infinity|non finite|not finite|nonfinite|isfinite|isnan"
            "|diverged|diverging|exploded|exploding"
        ),
        "",
    ),
    ("gpu_out_of_memory", f"{_DEVICES}|hbm|vram", _NO_MEMORY, ""),
    ("shared_memory_full", "shm|shared memory", "space|full|insufficient|exhausted|bus error", ""),
    ("host_out_of_memory", "memory|ram|oom", f"{_NO_MEMORY}|oom killed|memory limit", ""),
    ("quota_exceeded", "disk|storage|space|file|files|inode|inodes", "quota", ""),
    ("disk_full", "disk|device|filesystem|volume", "no space|full|out of space", ""),
    (
        "network_error",
        "hub|huggingface|internet|wandb|pypi|dns|proxy",
        (
            "not connect|not reach|not resolve|internet connection|check your connection"
            "|connection error|unreachable|offline mode"
        ),
        "",
    ),
    ("collective_timeout", _COLLECTIVES, _TIME, ""),
    ("rendezvous_failed", _MEETINGS, f"{_TIME}|{_NOT_MET}", "loader|dataloader"),
    (
        "peer_lost",
        f"{_COLLECTIVES}|rank|ranks|peer|remote",
        f"{_GONE}|encountered error|error running",
        "",
    ),
    (
        "terminated",
        "worker|workers|actor|process|child|subprocess|raylet|pod|container",
        "died|dead|was killed|is killed|were killed|been killed|killed by|unexpectedly|disappeared",
        "loader|dataloader",
    ),
    (
        "checkpoint_mismatch",
        "checkpoint|checkpoints|ckpt|state dict|statedict|safetensors|weights|optimizer state|pth",
        (
            "mismatch|mismatched|not match|missing keys|unexpected keys|corrupt|corrupted"
            "|incompatible|truncated|incomplete|damaged|unexpected eof|wrong size|unable to load"
            "|not load|cannot load|failed to load"
        ),
        "",
    ),
    (
        "data_error",
        (
            "dataset|sample|samples|image|video|audio|record|records|json|jsonl|parquet|arrow|csv|tar"
            "|zip|tfrecord|shard|annotation|annotations|mp|wav|flac|jpeg|jpg|png"
        ),
        "corrupt|corrupted|decode|decoding|malformed|truncated|unreadable|damaged|cannot identify",
        "",
    ),
    (
        "storage_error",
        "file|files|filesystem|nfs|lustre|gpfs|bucket|mount|storage|object store|disk",
        f"{_TIME}|stale|input output|io error|read only|unavailable|not writable",
        "lock",
    ),
    (
        "device_fault",
        _DEVICES,
        f"{_BROKEN}|{_TIME}",
        # What a program asks for that is not there, or does not fit.
        (
            "import|install|installed|compile|compiled|compiling|compilation|build|building|version"
            "|versions|support|supported|supports|require|requires|required|expected|must|should"
            "|argument|arguments|config|setup|module|enabled|extension|same device|available"
            "|ordinal|visible"
        ),
    ),
)


class _Row(NamedTuple):
    cause: str
    thing: re.Pattern[str]
    trouble: re.Pattern[str]
    unless: re.Pattern[str] | None


def _words(alternatives: str) -> re.Pattern[str]:
    return re.compile(rf" (?:{alternatives})(?= )")


_ROWS = tuple(
    _Row(cause, _words(thing), _words(trouble), _words(unless) if unless else None)
    for cause, thing, trouble, unless in _TABLE
)
# Classes of which the program, and no library, has written the words.
_OF_PROGRAM = re.compile(
    r"(?:Type|Value|Key|Index|Attribute|Name|Import|ModuleNotFound|NotImplemented|Assertion|Syntax"
    r"|ZeroDivision|UnboundLocal|Recursion|Lookup|FileNotFound|FileExists|Permission|IsADirectory"
    r"|NotADirectory|Validation|Pickling|Config\w{0,40})Error|SystemExit|KeyboardInterrupt"
)
_FLOATS = frozenset({"ValueError", "AssertionError"})  # these tell of a loss as well
_SUFFIX = re.compile(r"(?:Error|Exception)$")
_FRAME = re.compile(r'File "([^"]{1,400})", line \d{1,9}(?:, in (\S{1,80}))?')
_INNERMOST = 3  # frames
# Files and functions that do one thing: all that fails in them fails for it.
_PLACES = (
    (
        "network_error",
        r"/(?:requests/adapters|urllib3/connection\w*|httpcore/\S{1,40}|ssl|http/client)\.py",
    ),
    ("rendezvous_failed", r"/torch/distributed/(?:rendezvous|elastic/rendezvous/\w{1,40})\.py"),
    (
        "checkpoint_mismatch",
        r"/torch/serialization\.py|/safetensors/|/torch/distributed/checkpoint/",
    ),
    (
        "data_error",
        (
            r"/(?:PIL|cv2|decord|av|soundfile|librosa|pyarrow|webdataset|h5py|torchcodec)/"
            r"|/(?:tarfile|zipfile|gzip|lzma|bz2)\.py"
        ),
    ),
)
_IN_PLACES = tuple((cause, re.compile(files)) for cause, files in _PLACES)
_SAVES = re.compile(r"sav|writ|dump", re.IGNORECASE)  # of functions
# A server that has answered is there.
_ANSWERED = re.compile(
    r"\b(?:40[0134]|not found|gated|unauthorized|forbidden|invalid)\b", re.IGNORECASE
)
_OF_A_SIGNAL = re.compile(
    r"\b(?:exit(?:ed)?|return|status|code|exitcode|returncode|rc)[ _-]?(?:code|status|value)?"
    r"\W{1,4}(?P<ended>-(?:4|6|7|8|9|11)|13[2-79])\b(?!\.\d)"
    r"|\b(?:signal|by|with|on)\W{1,4}(?P<ended2>SIG(?:KILL|SEGV|BUS|ILL|FPE|ABRT))\b"
    r"|\bsignal\W{1,4}(?P<signal>4|6|7|8|9|11)\b(?!\.\d)"
)
_OF_AN_EXIT = re.compile(
    r"\b(?:exit(?:ed|s|ing)?|fail(?:ed|s)?|died|dies|ended|ends|finished|returned|terminated"
    r"|crashed|quit|stopped)\b.{0,60}?\b(?:code|status|exitcode|returncode|rc)\W{1,4}"
    r"(?P<ended>[1-9]\d{0,2})\b(?!\.\d)",
    re.IGNORECASE,
)
# A shell's words on a program that a signal has ended, in any language; with a core or without.
_OF_A_SHELL = re.compile(
    r"\S.{0,120}?: \S{1,20} \d{1,9}[:\uff1a] {1,4}\d{1,15} \S.{0,40}? {3,}(?P<core>\()?"
)
_RANK = re.compile(r"\b(?:global[ _]?)?rank[ #:=_-]{0,3}(\d{1,7})\b", re.IGNORECASE)
_LEVEL = re.compile(
    r"(?<![\w.])(?:ERROR|FATAL|CRITICAL|SEVERE|EMERGENCY)(?![\w.])"
    r"|^(?:error|fatal|fatal error)\b[: ]|^\W{0,3}[EF]\d{4} \d\d:"
    r"|(?:^|[\s\[])level=(?:error|fatal)\b",
)
_CALM = re.compile(r"(?<![\w.])(?:INFO|DEBUG|NOTICE|TRACE)(?![\w.])|^\W{0,3}I\d{4} \d\d:")
_GIVES_UP = re.compile(r"\b(?:exiting|aborting|giving up|quitting)\b", re.IGNORECASE)
_GOES_ON = re.compile(
    r"\b(?:skip(?:s|ped|ping)?|retry(?:ing)?|retries|ignor(?:e|ed|ing)|fall(?:s|ing)? ?back"
    r"|from scratch|instead|another|continu(?:e|es|ing)|recovered|resum(?:e|ed|ing)"
    r"|early stopping)\b",
    re.IGNORECASE,
)
_WARNING = re.compile(r"(?i:\bwarn(?:ing)?s?\b)|Warning\b|^\W{0,3}W\d{4} \d\d:")
_TROUBLE = _words(
    "error|errors|failed|failure|fail|fatal|abort|aborted|aborting|exception|cannot|could not"
    "|unable|not load|not connect|crash|crashed|killed|lost|died|dead"
    "|hang|hung|stuck|stalled|timed out|times out|diverged|exploded|refused"
    "|unreachable|corrupt|corrupted"
)


def _plain(text: str) -> str:
    """Return the words of a text, names of programs taken apart, each between two spaces."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text[:_LONGEST].replace("NaN", "nan"))
    apart = apart.replace("n't ", " not ")
    return f" {' '.join(re.findall(r'[a-z]+', apart.lower()))} "


def _cause(words: str, *, floats_only: bool = False) -> str:
    """Return the cause that words tell of, "" = none."""
    for row in _ROWS[:1] if floats_only else _ROWS:
        fits = row.trouble.search(words) and row.thing.search(words)
        if fits and (row.unless is None or not row.unless.search(words)):
            return row.cause
    return ""


def of_exception(kind: str, message: str, traceback: str) -> Meaning | None:
    """Return what an exception means of which no rule knows the words, None = not known.

    Args:
        kind: its class.
        message: its first line.
        traceback: lines of its frames, "" = not known.
    """
    name = kind.rpartition(".")[2]
    words = _plain(f"{_SUFFIX.sub('', name)} {message}")
    if _OF_PROGRAM.fullmatch(name):
        cause = _cause(words, floats_only=True) if name in _FLOATS else ""
        return Meaning(cause, _PROBABLY) if cause else None
    if found := _OF_A_SIGNAL.search(message):
        end = ended({key: text for key, text in found.groupdict().items() if text})
        return Meaning(end.cause, _PROBABLY, alone=end.alone)
    cause = _cause(words) or _of_frames(traceback)
    if cause == "network_error" and _ANSWERED.search(message):
        cause = ""
    return Meaning(cause, _PROBABLY, aside=_is_aside(cause)) if cause else None


def _of_frames(traceback: str) -> str:
    """Return the cause that the innermost frames tell of: some do one thing only."""
    frames = _FRAME.findall(traceback)[-_INNERMOST:]
    for file, _ in reversed(frames):
        for cause, place in _IN_PLACES:
            if place.search(file):
                is_of_file = cause in {"checkpoint_mismatch", "data_error"}
                saves = is_of_file and any(_SAVES.search(function) for _, function in frames)
                return "storage_error" if saves else cause
    return ""


def is_of_http(traceback: str) -> bool:
    """Return whether an exception was raised as a server was asked for something."""
    return _of_frames(traceback) == "network_error"


def of_open_traceback(traceback: str) -> Meaning:
    """Return what a traceback means of which the log does not have the end.

    Args:
        traceback: lines of its frames.
    """
    return Meaning(_of_frames(traceback) or "program_error", _PERHAPS)


def _is_aside(cause: str) -> bool:
    return cause in {"collective_timeout", "peer_lost", "rendezvous_failed", "terminated"}


def of_line(text: str) -> Meaning | None:
    """Return what a line of no exception means of which no rule knows the words.

    Of a line that is no error only a trouble with a thing counts. A line that calms, or says how
    the program goes on, counts only if it says that the program gives up.

    Args:
        text: the whole line, cleaned.
    """
    is_error = _LEVEL.search(text) is not None
    is_calm = _GOES_ON.search(text) is not None or (_CALM.search(text) and not is_error)
    if is_calm and not _GIVES_UP.search(text):
        return None
    rank = tuple(map(int, _RANK.findall(text)[:1]))
    if found := _OF_A_SIGNAL.search(text) or _OF_AN_EXIT.search(text):
        end = ended({key: word for key, word in found.groupdict().items() if word})
        return Meaning(end.cause, _PERHAPS, rank, alone=end.alone, aside=True)
    if found := _OF_A_SHELL.match(text):
        return Meaning("native_crash" if found["core"] else "killed", _PERHAPS)
    words = _plain(text)
    cause = _cause(words) if is_error or _TROUBLE.search(words) else ""
    if cause:
        return Meaning(cause, _PERHAPS, aside=_is_aside(cause))
    is_warning = _WARNING.search(text) is not None
    return Meaning("program_error", _PERHAPS) if is_error and not is_warning else None
