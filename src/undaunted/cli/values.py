"""Reading the values of options: text in, value out, ValueError with the remedy otherwise."""

from __future__ import annotations

import re
import signal

from undaunted.base.ids import file_name

_STREAMS = re.compile(r"[0-3]|\d+:[0-3](,\d+:[0-3])*")
_NODES = re.compile(r"(\d+)(?::(\d+))?")
_PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGALRM")
_DEVICES = ("auto", "cpu", "gpu")


def count(text: str) -> int:
    """Read a whole number from 0."""
    if not re.fullmatch(r"\d{1,9}", text.strip(), re.ASCII):
        raise ValueError(f"{text!r} is not a whole number from 0")
    return int(text)


def port(text: str) -> int:
    """Read a TCP port."""
    if not re.fullmatch(r"\d{1,5}", text.strip(), re.ASCII) or int(text) > 65535:
        raise ValueError(f"{text!r} is not a port number (0 to 65535)")
    return int(text)


def nproc(text: str) -> int | str:
    """Read a number of workers: positive, or the kind of device to count."""
    if text in _DEVICES:
        return text
    if text == "xpu":
        raise ValueError("'xpu' devices cannot be counted yet; give the number of workers")
    if not re.fullmatch(r"\d{1,6}", text.strip(), re.ASCII) or int(text) < 1:
        raise ValueError(f"{text!r} is not a number of workers; give 1 or more, or auto, cpu, gpu")
    return int(text)


def nodes(text: str) -> tuple[int, int]:
    """Read a number of nodes, or MIN:MAX; return both."""
    match = _NODES.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is neither a number of nodes nor MIN:MAX")
    fewest, most = int(match[1]), int(match[2] or match[1])
    if not 0 < fewest <= most:
        raise ValueError(f"{text!r}: give N or MIN:MAX, with 1 or more, and MIN not above MAX")
    return fewest, most


def no_restart_code(text: str) -> int:
    """Read the exit code of a job that shall not be started again; it cannot be chosen yet."""
    if text.strip() != "93":
        raise ValueError(f"{text!r}: a job that shall not be started again ends with 93, no other")
    return 93


def streams(text: str) -> int | dict[int, int]:
    """Read torchrun's choice of streams: 0 none, 1 stdout, 2 stderr, 3 both; or per local rank."""
    if not _STREAMS.fullmatch(text):
        raise ValueError(
            f"{text!r} is no choice of streams; give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), "
            "or one per local rank such as 0:3,1:2"
        )
    if ":" not in text:
        return int(text)
    pairs = (item.split(":") for item in text.split(","))
    return {int(rank): int(bits) for rank, bits in pairs}


def ranks(text: str) -> list[int]:
    """Read local ranks separated by commas; nothing means all, given as an empty list."""
    if not text:
        return []
    if not re.fullmatch(r"\d{1,6}(,\d{1,6})*", text, re.ASCII):
        raise ValueError(f"{text!r} is not a list of local ranks such as 0,2")
    return sorted({int(item) for item in text.split(",")})


def texts(text: str) -> list[str]:
    """Read texts separated by commas; a comma in a text is written twice."""
    return [item.replace("\0", ",") for item in text.replace(",,", "\0").split(",") if item]


def event_log_handler(text: str) -> str:
    """Read torchrun's destination of its own events, of which there are none here."""
    if text.strip() != "null":
        raise ValueError(
            f"{text!r}: torchrun's events do not exist here; the journal has every event of the "
            "run, see undaunted report; leave it out"
        )
    return "null"


def signals(text: str) -> list[int]:
    """Read names of signals that the launcher passes on, separated by commas."""
    names = [name.strip().upper() for name in text.split(",") if name.strip()]
    names = [name if name.startswith("SIG") else f"SIG{name}" for name in names]
    for name in names:
        if name not in _PASSED_ON:
            raise ValueError(f"{name} cannot be passed on; choose from {', '.join(_PASSED_ON)}")
    if not names:
        raise ValueError("no signal is named; leave it out for SIGTERM,SIGINT,SIGHUP,SIGQUIT")
    return [int(signal.Signals[name]) for name in dict.fromkeys(names)]


def name(text: str) -> str:
    """Read the name of a node: it becomes part of file names."""
    if text and file_name(text) != text:
        raise ValueError(f"{text!r}: use letters, digits, dots, dashes and underscores only")
    return text


def modules(text: str) -> list[str]:
    """Read names of modules separated by commas."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"{name!r} is not the name of a module")
    return names


def settings(text: str) -> dict[str, str]:
    """Read torchrun's ``key=value,key=value``."""
    pairs = [item.partition("=") for item in text.split(",") if item.strip()]
    for key, equals, _ in pairs:
        if not key.strip() or not equals:
            raise ValueError(f"{key!r} is not KEY=VALUE")
    return {key.strip(): value.strip() for key, _, value in pairs}
