"""Reading values of options: from text or from YAML, ValueError with the remedy otherwise.

At the end the kinds of options: a type with the reader of its text.
"""

from __future__ import annotations

import math
import os
import re
import signal
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from undaunted.base.durations import parse_limit, parse_optional_seconds, parse_seconds
from undaunted.base.ids import file_name
from undaunted.base.options import SWITCH, Kind

if TYPE_CHECKING:
    from collections.abc import Callable

_WORDS = {"1": True, "true": True, "yes": True, "on": True}
_WORDS.update({"0": False, "false": False, "no": False, "off": False})
_NOTHING = frozenset({"", "none", "null"})
LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "CRITICAL": 50}  # as in `logging`
_OTHER_NAMES = {"DBG": 10, "WARN": 30}
DEVICES = ("auto", "cpu", "gpu")
_STREAMS = re.compile(r"[0-3]|\d+:[0-3](,\d+:[0-3])*")
_SIZE = re.compile(r"(\d{1,15})\s*([KMGT]?)(?:I?B)?", re.ASCII)
_NODES = re.compile(r"(\d+)(?::(\d+))?")
PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGALRM")
# By default these stop a process, or do nothing to it.
_HARMLESS = ("STOP", "TSTP", "TTIN", "TTOU", "CONT", "CHLD", "URG", "WINCH")


def boolean(value: object) -> bool:
    """Read a yes or no."""
    if isinstance(value, bool):
        return value
    try:
        return _WORDS[str(value).strip().lower()]
    except KeyError:
        raise ValueError(f"{value!r} is neither true nor false") from None


def is_boolean(text: str) -> bool:
    """Tell whether :func:`boolean` takes this text."""
    return text.strip().lower() in _WORDS


def seconds(value: object) -> float:
    """Read a duration, 0 or more."""
    return parse_seconds(_number_as_text(value))


def positive_seconds(value: object) -> float:
    """Read a duration above 0."""
    duration = seconds(value)
    if duration == 0:
        raise ValueError("0 is no period of time; give a positive duration")
    return duration


def limit(value: object) -> float | None:
    """Read a timeout; None, ``none``, ``null`` and nothing turn it off."""
    return None if value is None else parse_limit(_number_as_text(value))


def number(minimum: float) -> Callable[[object], float]:
    """Make a reader of numbers from ``minimum``."""

    def read(value: object) -> float:
        try:
            result = math.nan if isinstance(value, bool) else float(str(value))
        except ValueError:
            result = math.nan
        if not math.isfinite(result) or result < minimum:
            raise ValueError(f"{value!r} is not a number from {minimum:g}")
        return result

    return read


def whole(minimum: int | None = None, maximum: int | None = None) -> Callable[[object], int]:
    """Make a reader of whole numbers in a range; None = without bound."""

    def read(value: object) -> int:
        text = "" if isinstance(value, bool) else str(value).strip()
        result = int(text) if re.fullmatch(r"-?\d{1,9}", text, re.ASCII) else None
        too_small = minimum is not None and result is not None and result < minimum
        too_large = maximum is not None and result is not None and result > maximum
        if result is None or too_small or too_large:
            bounds = "" if minimum is None else f" from {minimum}"
            bounds += "" if maximum is None else f" to {maximum}"
            if result is None and re.fullmatch(r"-?\d{10,}", text, re.ASCII):
                bounds = f"{bounds} of at most 9 digits"
            raise ValueError(f"{value!r} is not a whole number{bounds}")
        return result

    return read


def optional(read: Callable[[Any], object], nothing: object = None) -> Callable[[object], object]:
    """Make a reader that also takes nothing (None, ``none``, ``null``, empty), as ``nothing``."""

    def read_or_none(value: object) -> object:
        if value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING):
            return nothing
        return read(value)

    return read_or_none


def intensity(value: object) -> tuple[int, float]:
    """Read how often something may happen within a time: ``3/10m``."""
    number, _, time = str(value).partition("/")
    try:
        often, within = whole(1)(number), positive_seconds(time)
    except ValueError as error:
        raise ValueError(f"{value!r} is not N/TIME such as 3/10m: {error}") from None
    return often, within


def size(value: object) -> int:
    """Read a number of bytes: ``1048576``, ``64M``, ``1G``; K, M and G are powers of 1024."""
    found = _SIZE.fullmatch(str(value).strip().upper())
    if found is None:
        raise ValueError(f"{value!r} is not a number of bytes such as 64M or 1G")
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[found[2]]


def size_from(least: int) -> Callable[[object], int]:
    """Make a reader of numbers of bytes from ``least``, or 0."""

    def read(value: object) -> int:
        found = size(value)
        if 0 < found < least:
            raise ValueError(f"{value!r} is less than {least} bytes")
        return found

    return read


def text(value: object) -> str:
    """Read text."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text; put it into quotes")  # noqa: TRY004
    return value


def choice(*words: str) -> Callable[[object], str]:
    """Make a reader that takes one of these words."""

    def read(value: object) -> str:
        if value not in words:
            raise ValueError(f"{value!r} is unknown; choose {' or '.join(words)}")
        return str(value)

    return read


def absolute_path(value: object) -> str:
    """Read the path of a file, which must not depend on the current directory."""
    path = text(value)
    if not PurePosixPath(path).is_absolute():
        raise ValueError(f"{path!r} is not an absolute path; begin it with /")
    return path


def absolute_paths(value: object) -> str:
    """Read absolute paths separated by commas."""
    paths = [absolute_path(item.strip()) for item in text(value).split(",") if item.strip()]
    if not paths:
        raise ValueError(f"{value!r} names no path; give absolute ones, separated by commas")
    return ",".join(paths)


def unix_socket(value: object) -> str:
    """Read the path of a Unix socket, ``/PATH`` or ``unix:///PATH``; return the path."""
    path = text(value).removeprefix("unix://")
    if not PurePosixPath(path).is_absolute() or path.endswith("/"):
        raise ValueError(f"{value!r} is no Unix socket; give /PATH or unix:///PATH")
    return path


def service(value: object) -> str:
    """Read where a service is: ``http(s)://HOST:PORT``, ``unix:///PATH`` or ``localhost``."""
    url = text(value).strip()
    if url == "localhost":
        return url
    if url.startswith("unix://"):
        return f"unix://{unix_socket(url)}"
    try:
        parts = urlsplit(url)
        rest = (parts.path.strip("/"), parts.query, parts.fragment, parts.username)
        understood = parts.scheme in {"http", "https"} and rest == ("", "", "", None)
        host, _ = parts.hostname, parts.port  # a bad port is noticed when it is read
    except ValueError:
        understood, host = False, None
    if not understood or not host:
        raise ValueError(f"{url!r} is no service; give http://HOST:PORT or unix:///PATH")
    return url.rstrip("/")


def web_url(value: object) -> str:
    """Read a URL, ``http(s)://HOST[:PORT][/PATH]``."""
    url = text(value).strip()
    try:
        parts = urlsplit(url)
        understood = parts.scheme in {"http", "https"} and parts.username is None
        host, _ = parts.hostname, parts.port  # a bad port is noticed when it is read
    except ValueError:
        understood, host = False, None
    if not understood or not host:
        raise ValueError(f"{url!r} is no URL; give http://HOST:PORT/PATH or https://HOST/PATH")
    return url


def device_template(value: object) -> str:
    """Read a path with ``{dev_name}``, a place for the name of a device."""
    return _template(value, "{dev_name}")


def nic_template(value: object) -> str:
    """Read a path with ``{nic}``, a place for the name of a NIC."""
    return _template(value, "{nic}")


def _template(value: object, place: str) -> str:
    path = absolute_path(value)
    if place not in path:
        raise ValueError(f"{path!r} lacks {place}, the place of the device's name")
    return path


def sections(value: object) -> dict[str, float | None]:
    """Read limits of sections: a mapping, or ``name:seconds,name:none``."""
    limits: dict[str, float | None] = {}
    for name, given in _section_items(value):
        if name in limits:
            raise ValueError(f"section {name!r} is given twice; keep one of them")
        try:
            limits[name] = limit(given)
        except ValueError as error:
            raise ValueError(f"section {name!r}: {error}") from None
    return limits


def signal_number(value: object) -> signal.Signals:
    """Read a signal that ends a process: by number or by name, with or without SIG, in any case."""
    name = str(value.name if isinstance(value, signal.Signals) else value).strip().upper()
    try:
        number = int(name) if name.isdigit() else None
        full_name = name if name.startswith("SIG") else f"SIG{name}"
        found = signal.Signals[full_name] if number is None else signal.Signals(number)
    except (KeyError, ValueError):
        raise ValueError(f"{value!r} is not a signal; give a name (SIGKILL) or a number") from None
    if found.name.removeprefix("SIG") in _HARMLESS:
        raise ValueError(f"{found.name} does not end a process; give SIGKILL or SIGTERM")
    return found


def log_level(value: object) -> int:
    """Read a level of `logging`: a name in any case, or a number from 10 to 50."""
    name = "" if isinstance(value, bool) else str(value).strip().upper()
    known = {**LEVELS, **_OTHER_NAMES}
    level = int(name) if re.fullmatch(r"\d{2}", name, re.ASCII) else known.get(name, 0)
    if not LEVELS["DEBUG"] <= level <= LEVELS["CRITICAL"]:
        raise ValueError(
            f"{value!r} is not a log level; give DEBUG, INFO, WARNING, ERROR, CRITICAL or 10 to 50"
        )
    return level


def _number_as_text(value: object) -> str:
    """Let numbers of YAML be read like those of a command line."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{value!r} is not a duration; give seconds (90) or a unit (500ms, 15m)")  # noqa: TRY004
    return str(value)


def _section_items(value: object) -> list[tuple[str, object]]:
    if isinstance(value, dict):
        wrong = [name for name in value if not isinstance(name, str) or not name.strip()]
        if wrong:
            raise ValueError(f"{wrong[0]!r} is not the name of a section; put it into quotes")
        return [(str(name), given) for name, given in value.items()]
    if value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING):
        return []
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a mapping of sections to seconds")  # noqa: TRY004
    items: list[tuple[str, object]] = []
    for item in filter(str.strip, value.split(",")):
        name, colon, given = item.rpartition(":")
        if not colon or not name.strip():
            raise ValueError(f"{item!r} is not NAME:SECONDS (as in step:60,checkpoint:10m)")
        items.append((name.strip(), given))
    return items


def port(value: object) -> int:
    """Read a TCP port."""
    text = str(value).strip()
    if not re.fullmatch(r"\d{1,5}", text, re.ASCII) or int(text) > 65535:
        raise ValueError(f"{value!r} is not a port number (0 to 65535)")
    return int(text)


def address(text: str) -> str:
    """Read a numeric address; ``localhost`` is one, too."""
    import ipaddress

    if text.strip() == "localhost":
        return "127.0.0.1"
    try:
        return str(ipaddress.ip_address(text.strip().removeprefix("[").removesuffix("]")))
    except ValueError:
        raise ValueError(
            f"{text!r} is no address such as 10.0.0.7 or ::1; 0.0.0.0 means all of this machine"
        ) from None


def nproc(text: str) -> int | str:
    """Read a number of workers: positive, or the kind of device to count."""
    if text in DEVICES:
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


def node_name(text: str) -> str:
    """Read the name of a node: it becomes part of file names."""
    if text and file_name(text) != text:
        raise ValueError(f"{text!r}: use letters, digits, dots, dashes and underscores only")
    return text


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


def signals(text: str) -> tuple[int, ...]:
    """Read names of signals that the launcher passes on, separated by commas."""
    names = [name.strip().upper() for name in text.split(",") if name.strip()]
    names = [name if name.startswith("SIG") else f"SIG{name}" for name in names]
    for name in names:
        if name not in PASSED_ON:
            raise ValueError(f"{name} cannot be passed on; choose from {', '.join(PASSED_ON)}")
    if not names:
        raise ValueError("no signal is named; leave it out for SIGTERM,SIGINT,SIGHUP,SIGQUIT")
    return tuple(int(signal.Signals[name]) for name in dict.fromkeys(names))


def modules(text: str) -> list[str]:
    """Read names of modules separated by commas."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"{name!r} is not the name of a module")
    return names


def pairs(text: str) -> dict[str, str]:
    """Read torchrun's ``key=value,key=value``."""
    split = [item.partition("=") for item in text.split(",") if item.strip()]
    for key, equals, _ in split:
        if not key.strip() or not equals:
            raise ValueError(f"{key!r} is not KEY=VALUE")
    return {key.strip(): value.strip() for key, _, value in split}


def path(text: str) -> Path:
    """Read the path of a file or directory."""
    if not text:
        raise ValueError("name a file or directory")
    return Path(text)


def paths(text: str) -> list[Path]:
    """Read paths separated by colons."""
    return [path(one) for one in text.split(os.pathsep) if one]


def one_more(text: str) -> list[str]:
    """Read an element of a list."""
    return [text]


# --- kinds ----------------------------------------------------------------------------------------


def one_of(metavar: str, *words: str, nothing: bool = False) -> Kind:
    """Make a kind of these words; with ``nothing`` it also takes none, as None."""
    read = choice(*words)
    return Kind(optional(read) if nothing else read, metavar, choices=words)


Flag = Annotated[bool, Kind(boolean)]
Switch = Annotated[bool, Kind(boolean, SWITCH, choices=("true", "false"))]
Count = Annotated[int, Kind(whole(0), "N")]
Port = Annotated[int, Kind(port, "PORT")]
Seconds = Annotated[float, Kind(seconds, "TIME")]
Period = Annotated[float, Kind(positive_seconds, "TIME")]
OptionalSeconds = Annotated[float | None, Kind(parse_optional_seconds, "TIME")]
# None and the words for nothing turn the test off.
Limit = Annotated[float | None, Kind(limit, "TIME")]
Text = Annotated[str, Kind(text, "TEXT")]
# Not given = None; the words for nothing mean the same.
OptionalText = Annotated[str | None, Kind(optional(text), "TEXT")]
OptionalFile = Annotated[Path | None, Kind(path, "FILE")]
OptionalDirectory = Annotated[Path | None, Kind(path, "DIR")]
