"""`undaunted serve`: an attribution service, which answers over HTTP what a log tells of."""

import contextlib
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from undaunted.base import values
from undaunted.base.options import Kind, Opt
from undaunted.base.process import die_with_parent
from undaunted.base.roots import Roots
from undaunted.base.unix_sockets import is_answered, listen_at, remove
from undaunted.base.values import Count, Flag, OptionalDirectory, OptionalFile, Period, Port
from undaunted.cli.command import Command, Parsed
from undaunted.cli.messages import UsageError
from undaunted.cli.serving import bearer_token, listen, server_tls

_BACKLOG = 512
# What NVRx's service has and this one has no use for.
_NO_EFFECT = (
    "NVRX_ATTRSVC_LLM_BASE_URL",
    "NVRX_ATTRSVC_LLM_MODEL",
    "SLACK_BOT_TOKEN",
)


def _rate(text: str) -> int:
    """Read a number of requests a minute: ``60``, or ``60/minute``."""
    return values.whole(0)(text.removesuffix("/minute"))


_Rate = Annotated[int, Kind(_rate, "N")]


class ServeOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Options of `undaunted serve`."""

    allowed_root: Annotated[
        list[Path],
        Kind(values.paths, "DIR", repeat=True),
        Opt(
            "Folder below which logs may be read; may be given several times",
            "Options",
            variables=("NVRX_ATTRSVC_ALLOWED_ROOT",),
        ),
    ] = []
    host: Annotated[
        str,
        Kind(values.address, "ADDRESS"),
        Opt("Address to listen at", variables=("NVRX_ATTRSVC_HOST",)),
    ] = "127.0.0.1"
    port: Annotated[Port, Opt("Port; 0 = any", variables=("NVRX_ATTRSVC_PORT",))] = 8000
    unix: Annotated[OptionalFile, Opt("Listen at this Unix socket instead, as this user only")] = (
        None
    )
    token_file: Annotated[
        OptionalFile,
        Opt("File (mode 0600) with the token that every request must carry as a bearer token"),
    ] = None
    insecure: Annotated[
        Flag, Opt("Let anybody who can connect ask without a token, on any address")
    ] = False
    tls_cert: Annotated[OptionalFile, Opt("Certificate for TLS (https), PEM")] = None
    tls_key: Annotated[OptionalFile, Opt("Its private key, PEM, without a password")] = None
    state_dir: Annotated[
        OptionalDirectory,
        Opt("For the ledger of logs and results", shown="~/.local/state/undaunted/serve"),
    ] = None
    analysis_timeout: Annotated[Period, Opt("Longest time for reading one log")] = 300.0
    analyses: Annotated[
        int, Kind(values.whole(1, 64), "N"), Opt("How many logs are read at a time")
    ] = 2
    rate_limit_submit: Annotated[
        _Rate,
        Opt(
            "Logs a client may submit a minute; 0 = any number",
            variables=("NVRX_ATTRSVC_RATE_LIMIT_SUBMIT",),
        ),
    ] = 1200
    rate_limit_analyze: Annotated[
        _Rate,
        Opt(
            "Questions of a client a minute that make a log be read",
            variables=("NVRX_ATTRSVC_RATE_LIMIT_ANALYZE",),
        ),
    ] = 60
    rate_limit_preview: Annotated[
        _Rate,
        Opt(
            "Beginnings of logs a client may look at a minute",
            variables=("NVRX_ATTRSVC_RATE_LIMIT_PREVIEW",),
        ),
    ] = 120
    export_url: Annotated[
        str,
        Kind(values.optional(values.web_url, ""), "URL"),
        Opt(
            "Send each result there, by POST, as JSON",
            shown="none",
            variables=("NVRX_ATTRSVC_EXPORT_URL",),
        ),
    ] = ""
    listen_fd: Annotated[
        Count,
        Opt("Descriptor of a socket that listens already, of a launcher", rare=True, shown="none"),
    ] = 0


SERVE = Command(
    "serve",
    ServeOptions,
    "--allowed-root DIR [OPTIONS]",
    """\
Answers over HTTP what the log of a job tells of, and whether to start the job
again: an attribution service for launchers and monitors, those of NVRx as well.
No language model is asked. It needs the packages of undaunted[services].

Examples:
  undaunted serve --allowed-root /logs
  undaunted serve --allowed-root /logs --host 0.0.0.0 --token-file token \\
      --tls-cert cert.pem --tls-key key.pem
""",
    "At an address of loopback, and at a Unix socket, no token is needed. nvrx-attrsvc is another "
    "name for this command; variables NVRX_ATTRSVC_... give options as well.",
)


def main(argv: Sequence[str]) -> int:
    """Serve until told to end.

    Args:
        argv: arguments after ``undaunted serve``.

    Returns:
        0 at the end, or 2 if it cannot serve.
    """
    return SERVE.run(argv, _serve)


def _serve(parsed: Parsed[ServeOptions]) -> int:
    options = parsed.options
    roots = _roots(parsed)
    parsed.refuse_several("token-file", "insecure")
    _refuse_beside_unix(parsed)
    token = bearer_token(options.token_file)
    context = server_tls(options.tls_cert, options.tls_key)
    if options.listen_fd:
        die_with_parent(os.getppid())
    server, make_app, service_of = _libraries()
    listening, where = _listen(parsed, "https" if context else "http")
    with listening, _removed(None if options.listen_fd else options.unix):
        service = service_of(roots, options, state_dir(options, os.environ))
        app = make_app(
            service,
            token=token,
            anybody=options.insecure,
            submits=options.rate_limit_submit,
            analyses=options.rate_limit_analyze,
            previews=options.rate_limit_preview,
        )
        first = _first_lines(parsed, roots, where, token) if where else []
        server(app, listening, _say, context, first, service.let_go).run()
    return 0


def _libraries() -> tuple[Any, Any, Any]:
    try:
        from undaunted.services.http import make_app
        from undaunted.services.server import Server
    except ModuleNotFoundError as error:
        raise UsageError(
            f"it needs the package {error.name}: pip install 'undaunted[services]'"
        ) from None
    from undaunted.services.analysts import Analyst
    from undaunted.services.export import Export
    from undaunted.services.ledger import Ledger, LedgerError
    from undaunted.services.service import AttributionService

    def service_of(roots: Roots, options: ServeOptions, state_dir: Path) -> AttributionService:
        limit_s = options.analysis_timeout
        analysts = [Analyst(roots, limit_s) for _ in range(options.analyses)]
        try:
            ledger = Ledger(state_dir)
            export = Export(options.export_url) if options.export_url else None
            service = AttributionService(roots, ledger, analysts, limit_s, export)
        except LedgerError as error:
            raise UsageError(f"{error}; --state-dir names another directory") from None
        if ledger.damaged:
            said = "the ledger was damaged in part; what could be read is kept, and the old file is"
            _say(f"{said} {ledger.damaged}")
        return service

    return Server, make_app, service_of


def _say(line: str) -> None:
    """Show a line on standard error; where that is closed, nowhere."""
    with contextlib.suppress(OSError, ValueError):
        print(f"undaunted serve: {line}", file=sys.stderr, flush=True)


def _roots(parsed: Parsed[ServeOptions]) -> Roots:
    if not parsed.options.allowed_root:
        raise UsageError("name the folder of the logs: --allowed-root DIR")
    try:
        return Roots(parsed.options.allowed_root)
    except ValueError as error:
        raise UsageError(f"{parsed.source('allowed-root')}: {error}") from None


def _listen(parsed: Parsed[ServeOptions], scheme: str) -> tuple[socket.socket, str]:
    """Return the socket, and its URL; "" = the launcher knows, and says what is to be said."""
    options = parsed.options
    if options.listen_fd:
        return socket.socket(fileno=options.listen_fd), ""
    if options.unix is not None:
        path = str(options.unix.absolute())
        return _listen_at(path), f"unix://{path}"
    is_open = options.token_file is None and not options.insecure
    listening = listen(parsed, is_open=is_open, remedy=", or --insecure if anybody may ask")
    host = f"[{options.host}]" if ":" in options.host else options.host
    return listening, f"{scheme}://{host}:{listening.getsockname()[1]}"


def _listen_at(path: str) -> socket.socket:
    """Listen at a Unix socket, unless another service does."""
    if is_answered(path, socket.SOCK_STREAM):
        raise UsageError(f"another program listens at {path}: end it, or give --unix another path")
    try:
        return listen_at(path, socket.SOCK_STREAM, _BACKLOG)
    except OSError as error:
        raise UsageError(f"cannot listen at {path}: {error.strerror or error}") from None


@contextlib.contextmanager
def _removed(path: Path | None) -> Iterator[None]:
    """Remove the file of a Unix socket at the end."""
    if path is None:
        yield
        return
    path = path.absolute()
    listening = path.lstat()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            remove(str(path), listening)


def _refuse_beside_unix(parsed: Parsed[ServeOptions]) -> None:
    """Refuse what a Unix socket has no use for; variables are for all services of a place."""
    given = [
        parsed.source(name)
        for name in ("host", "port", "tls-cert", "tls-key")
        if parsed.is_given(name) and parsed.source(name).startswith("-")
    ]
    if parsed.options.unix is not None and given:
        raise UsageError(
            f"{given[0]} has no effect with --unix, which only this user can connect to: leave out "
            "one of them"
        )


def state_dir(options: ServeOptions, environ: Mapping[str, str]) -> Path:
    """Return where the ledger is."""
    if options.state_dir is not None:
        return options.state_dir
    above = environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(above).expanduser() / "undaunted" / "serve"


def _first_lines(parsed: Parsed[ServeOptions], roots: Roots, where: str, token: bytes) -> list[str]:
    asks = "asks for the token" if token else "asks for no token"
    if parsed.options.insecure:
        asks = "INSECURE: anybody who can connect may ask"
    unused = filter(os.environ.get, _NO_EFFECT)
    lines = [f"listens at {where}, {asks}; reads logs below {', '.join(roots.folders)}"]
    return [*lines, *(f"{name} has no effect here" for name in unused)]
