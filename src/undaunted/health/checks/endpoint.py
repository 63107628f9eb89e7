"""An external health service, ``nvhcd``: asked over gRPC on a Unix socket of this node.

Only its definite word makes the node unhealthy. A service that is not there, or does not answer,
is a fault of the service.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from undaunted.health.check import SERVICE_DEADLINE_S, Check, Finding, Settings, skipped

_METHOD = "/nvhcd.HealthCheckService/RunHealthCheck"
_ARGUMENTS = ("--no-slurm",)
_IMPORT_S = 10.0  # to import gRPC takes time as well
_SHOWN = 300  # characters of what the service says


class Answer(NamedTuple):
    """The answer of the service; see its message ``HealthCheckResponse``."""

    success: bool = False
    exit_code: int = 0
    output: str = ""
    error: str = ""


class Endpoint(Check):
    """The service."""

    name = "health service"
    must_answer = False

    def __init__(
        self,
        path: str,
        import_path: tuple[str, ...] = (),
        arguments: tuple[str, ...] = _ARGUMENTS,
        timeout_s: float = SERVICE_DEADLINE_S - _IMPORT_S,
    ) -> None:
        """Ask the service.

        Args:
            path: of its socket.
            import_path: folders in which gRPC is looked for as well.
            arguments: what it is asked.
            timeout_s: longest wait for its answer.
        """
        self.subject = path
        self.deadline_s = timeout_s + _IMPORT_S
        self._import_path = import_path
        self._arguments = arguments
        self._timeout_s = timeout_s

    def run(self, seen: dict[str, Any]) -> Finding | None:  # noqa: ARG002 - nothing to keep
        """See `Check`."""
        if not Path(self.subject).exists():
            return skipped("there is no such socket")
        sys.path += [path for path in self._import_path if path not in sys.path]
        try:
            grpc = importlib.import_module("grpc")
        except ImportError as error:
            return skipped(f"that needs gRPC ({error}); pip install 'undaunted[health]'")
        try:
            with grpc.insecure_channel(f"unix:{self.subject}") as channel:
                ask = channel.unary_unary(_METHOD, encode_arguments, decode_answer)
                return judge(ask(self._arguments, timeout=self._timeout_s))
        except grpc.RpcError as error:
            return skipped(f"no answer: {_words(error)}")


def judge(answer: Answer) -> Finding | None:
    """Return what is wrong according to the service."""
    failed, which = _failures(answer.output)
    said = which or answer.error.strip() or answer.output.strip()
    said = " ".join(said.split())[:_SHOWN]
    if failed:
        return Finding(f"{failed} of its checks failed: {said}")
    if not answer.success and (answer.exit_code or answer.error):
        return Finding(f"failed with exit code {answer.exit_code}: {said}")
    if not answer.success:
        return skipped("its answer does not tell whether it succeeded")
    if failed is None and answer.output.strip():
        return skipped(f"its answer tells no number of failed checks: {said}")
    return None


def _failures(output: str) -> tuple[int | None, str]:
    """How many checks failed, and which, by the JSON that the service prints; None if unclear."""
    try:
        report = json.loads(output)
    except (ValueError, RecursionError):
        return None, ""
    count = report.get("fail_count") if isinstance(report, dict) else None
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        return None, ""
    which = report.get("failed_checks")
    return count, json.dumps(which) if which else ""


def encode_arguments(arguments: tuple[str, ...]) -> bytes:
    """Encode the message ``HealthCheckRequest``: field 1 is a repeated string."""
    parts = (argument.encode() for argument in arguments)
    return b"".join(b"\x0a" + _varint(len(part)) + part for part in parts)


def decode_answer(message: bytes) -> Answer:
    """Decode the message ``HealthCheckResponse``; what is not understood is left out.

    Raises:
        ValueError: the message is cut off, or not of this encoding at all.
    """
    fields: dict[int, int | bytes] = {}
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            fields[number], at = _read_varint(message, at)
        elif wire in (1, 2, 5):
            size = {1: 8, 5: 4}.get(wire, 0)
            if wire == 2:  # a length, then as many bytes
                size, at = _read_varint(message, at)
            if at + size > len(message):
                raise ValueError("the answer is cut off")
            fields[number] = message[at : at + size]
            at += size
        else:
            raise ValueError(f"the answer has a field of type {wire}")
    success, code = fields.get(1, 0), fields.get(2, 0)
    return Answer(
        success=bool(success) if isinstance(success, int) else False,
        exit_code=code if isinstance(code, int) else 0,
        output=_text(fields.get(3)),
        error=_text(fields.get(4)),
    )


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:  # seven bits a byte
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    number = 0
    for position, byte in enumerate(message[at : at + 10]):
        number |= (byte & 127) << 7 * position
        if byte < 128:  # the last one
            return number, at + position + 1
    raise ValueError("the answer is cut off")


def _text(value: int | bytes | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _words(error: Any) -> str:
    """The first line of what gRPC says."""
    details = getattr(error, "details", None)
    said = (details() if callable(details) else "") or str(error) or type(error).__name__
    return str(said).splitlines()[0][:_SHOWN]


def checks(settings: Settings) -> list[Check]:
    """Return the check if there is a service."""
    path = settings.endpoint.removeprefix("unix://").removeprefix("unix:")
    return [Endpoint(path, settings.import_path)] if path else []
