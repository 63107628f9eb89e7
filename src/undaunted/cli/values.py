"""Reading the values of options: text in, value out, ValueError with the remedy otherwise."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from undaunted.base.durations import parse_limit

if TYPE_CHECKING:
    from collections.abc import Callable

_WORDS = {"1": True, "true": True, "yes": True, "on": True}
_WORDS.update({"0": False, "false": False, "no": False, "off": False})
_STREAMS = re.compile(r"[0-3]|\d+:[0-3](,\d+:[0-3])*")
_NODES = re.compile(r"(\d+)(?::(\d+))?")
_DEVICES = ("auto", "cpu", "gpu")


def boolean(text: str) -> bool:
    """Read a yes or no."""
    try:
        return _WORDS[text.strip().lower()]
    except KeyError:
        raise ValueError(f"{text!r} is neither true nor false") from None


def is_boolean(text: str) -> bool:
    """Tell whether :func:`boolean` takes this text."""
    return text.strip().lower() in _WORDS


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


def choice(*words: str) -> Callable[[str], str]:
    """Make a reader that takes one of these words."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is unknown; choose {' or '.join(words)}")
        return text

    return read


def restart_policy(text: str) -> str:
    """Read NVRx's restart policy, of which one is built."""
    if text == "min-healthy":
        raise ValueError("'min-healthy' is not built yet; use any-failed or leave it out")
    return choice("any-failed")(text)


def nproc(text: str) -> int | str:
    """Read a number of workers: positive, or the kind of device to count."""
    if text in _DEVICES:
        return text
    if text == "xpu":
        raise ValueError("'xpu' devices cannot be counted yet; give the number of workers")
    if not re.fullmatch(r"\d{1,6}", text.strip(), re.ASCII) or int(text) < 1:
        raise ValueError(f"{text!r} is not a number of workers; give 1 or more, or auto, cpu, gpu")
    return int(text)


def one_node(text: str) -> int:
    """Read a number of nodes, which can only be one for now."""
    match = _NODES.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is neither a number of nodes nor MIN:MAX")
    if {match[1], match[2] or match[1]} != {"1"}:
        raise ValueError(f"{text!r}: more than one node is not built yet; give 1 or leave it out")
    return 1


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


def sections(text: str) -> dict[str, float | None]:
    """Read limits of sections: ``name:seconds,name:none``."""
    limits: dict[str, float | None] = {}
    for item in filter(None, text.split(",")):
        name, colon, limit = item.rpartition(":")
        name = name.strip()
        if not colon or not name:
            raise ValueError(f"{item!r} is not NAME:SECONDS (as in step:60,checkpoint:10m)")
        if name in limits:
            raise ValueError(f"section {name!r} is given twice; keep one of them")
        try:
            limits[name] = parse_limit(limit)
        except ValueError as error:
            raise ValueError(f"section {name!r}: {error}") from None
    return limits


def signal_number(text: str) -> int:
    """Read a signal by name, with or without SIG, in any case, or by number."""
    import signal

    name = text.strip().upper()
    try:
        if name.isdigit():
            return signal.Signals(int(name))
        return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"]
    except (KeyError, ValueError):
        raise ValueError(f"{text!r} is not a signal; give a name (SIGKILL) or a number") from None


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
