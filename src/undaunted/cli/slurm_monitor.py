"""`undaunted slurm-monitor`: has an attribution service look at the logs of Slurm's jobs."""

import os
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from undaunted.base import values
from undaunted.base.options import Kind, Opt
from undaunted.base.values import Flag, OptionalDirectory, OptionalFile, Period, Port
from undaunted.cli.command import Command, Parsed
from undaunted.cli.messages import UsageError
from undaunted.cli.serving import bearer_token, listen, server_tls

if TYPE_CHECKING:
    from undaunted.services.slurm.monitor import Config

_LOOK = (signal.SIGUSR1, signal.SIGHUP)
_NAME = re.compile(r"[\w.@-]+")


def _service(text: str) -> str:
    """Read where the service is; nobody starts one here."""
    if text == "localhost":
        raise ValueError("'localhost' is no URL; give http://127.0.0.1:PORT or unix:///PATH")
    return values.service(text)


def _names(text: str) -> list[str]:
    """Read names separated by commas or spaces."""
    found = [name for name in re.split(r"[,\s]+", text) if name]
    for name in found:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name; use letters, digits, dots, dashes, underscores")
    return found


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is no regular expression: {error}") from None


_Names = Annotated[list[str], Kind(_names, "NAME,...", repeat=True)]


class MonitorOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Options of `undaunted slurm-monitor`."""

    attrsvc_endpoint: Annotated[
        str,
        Kind(_service, "URL"),
        Opt(
            "The attribution service: http://HOST:PORT, https://HOST:PORT or unix:///PATH",
            "Service",
            variables=("NVRX_ATTRSVC_ENDPOINT",),
        ),
    ] = "http://127.0.0.1:8000"
    attrsvc_token_file: Annotated[
        OptionalFile, Opt("File, mode 0600, with the token that the service wants to see")
    ] = None
    timeout: Annotated[
        Period, Opt("Longest wait for an answer", variables=("NVRX_SMONSVC_TIMEOUT",))
    ] = 60.0
    give_up: Annotated[Period, Opt("How long a result is asked for after a job has ended")] = 3600.0
    interval: Annotated[
        Period,
        Opt("Time between two looks at the queue", "Jobs", variables=("NVRX_SMONSVC_INTERVAL",)),
    ] = 180.0
    user: Annotated[
        _Names, Opt("Jobs of these users", shown="all", variables=("NVRX_SMONSVC_USER",))
    ] = []
    partitions: Annotated[
        _Names, Opt("Jobs in these partitions", shown="all", variables=("NVRX_SMONSVC_PARTITIONS",))
    ] = []
    job_pattern: Annotated[
        re.Pattern[str],
        Kind(_pattern, "REGEX"),
        Opt(
            "Jobs whose names begin like this", shown="all", variables=("NVRX_SMONSVC_JOB_PATTERN",)
        ),
    ] = re.compile("")
    state_dir: Annotated[
        OptionalDirectory,
        Opt(
            "For jobs and results; another monitor needs another one",
            shown="~/.local/state/undaunted/slurm-monitor",
        ),
    ] = None
    port: Annotated[
        Port | None,
        Kind(values.port, "PORT"),
        Opt(
            "Serve /healthz, /stats and /jobs here; 0 = a free port",
            "Status pages",
            shown="none",
            variables=("NVRX_SMONSVC_PORT",),
        ),
    ] = None
    host: Annotated[
        str,
        Kind(values.address, "ADDRESS"),
        Opt("Address of the pages", variables=("NVRX_SMONSVC_HOST",)),
    ] = "127.0.0.1"
    token_file: Annotated[
        OptionalFile,
        Opt("File, mode 0600, with the token that clients must send as a bearer token"),
    ] = None
    tls_cert: Annotated[OptionalFile, Opt("Certificate for TLS (https), PEM")] = None
    tls_key: Annotated[OptionalFile, Opt("Its private key, PEM, without a password")] = None
    verbose: Annotated[Flag, Opt("No effect: NVRx's monitor has it", short="v", rare=True)] = False


SLURM_MONITOR = Command(
    "slurm-monitor",
    MonitorOptions,
    "[OPTIONS]",
    """\
Follows the batch jobs of a Slurm cluster, tells an attribution service about
their logs, and keeps what it says of those that have ended. It needs nothing
but squeue and sacct, and no change to jobs.

Examples:
  undaunted slurm-monitor --attrsvc-endpoint http://logs0:8000 --user alice,bob
  undaunted slurm-monitor --partitions batch --port 8100
""",
    "SIGUSR1 has it look at the queue at once. SIGTERM ends it; started again, it goes on where it "
    "was. nvrx-smonsvc is another name for this command; variables NVRX_SMONSVC_... "
    "give options as well.",
)


def main(argv: Sequence[str]) -> int:
    """Follow jobs until told to end.

    Args:
        argv: arguments after ``undaunted slurm-monitor``.

    Returns:
        0 at the end, or 2 if it cannot work.
    """
    return SLURM_MONITOR.run(argv, _follow)


def _follow(parsed: Parsed[MonitorOptions]) -> int:
    # These have it look at the queue, which it does first of all: they must not end it until then.
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _LOOK}
    try:
        return _run(parsed)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(parsed: Parsed[MonitorOptions]) -> int:
    from undaunted.services.slurm.monitor import run

    config = build_config(parsed, os.environ)
    try:
        return run(config)
    except OSError as error:
        raise UsageError(
            f"{config.directory} cannot be used: {error.strerror or error}; name another one with "
            "--state-dir"
        ) from None
    finally:
        if config.listener is not None:
            config.listener.close()


def build_config(parsed: Parsed[MonitorOptions], environ: Mapping[str, str]) -> "Config":
    """Check everything, and listen.

    Raises:
        UsageError: something cannot work; the message names the value and the remedy.
    """
    from undaunted.services.slurm.monitor import Config

    options = parsed.options
    token = bearer_token(options.token_file)
    service_token = bearer_token(options.attrsvc_token_file)
    tls = server_tls(options.tls_cert, options.tls_key)
    listener = None
    if options.port is not None:
        listener = listen(parsed, is_open=not token)
    above = Path(environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
    directory = options.state_dir or above / "undaunted" / "slurm-monitor"
    return Config(
        service=options.attrsvc_endpoint,
        service_token=service_token,
        timeout_s=options.timeout,
        directory=directory.absolute(),
        period_s=options.interval,
        give_up_s=options.give_up,
        users=",".join(options.user),
        partitions=",".join(options.partitions),
        names=options.job_pattern,
        listener=listener,
        token=token,
        tls=tls,
    )
