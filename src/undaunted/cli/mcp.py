"""`undaunted mcp`: tools for assistants that explain failures, over standard input and output."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from undaunted.base.options import Kind, Opt
from undaunted.base.roots import Roots
from undaunted.base.values import paths
from undaunted.cli.command import Command, Parsed
from undaunted.cli.messages import UsageError


class McpOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Options of `undaunted mcp`."""

    allowed_root: Annotated[
        list[Path],
        Kind(paths, "DIR", repeat=True),
        Opt(
            "Folder below which runs and logs may be read; may be given several times",
            "Options",
            shown="the current directory",
        ),
    ] = []


MCP = Command(
    "mcp",
    McpOptions,
    "[OPTIONS]",
    """\
Lets an assistant explain failures of training jobs: a server of the Model
Context Protocol on standard input and output, which programs start. Its tools
list runs, explain a failure, show stacks and timeline, advise, and analyse logs
and dumps. They only read. It needs the package of undaunted[mcp].
""",
    "nvrx-mcp-analysis is another name for this command.",
)


def main(argv: Sequence[str]) -> int:
    """Serve one program until it closes standard input.

    Args:
        argv: arguments after ``undaunted mcp``.

    Returns:
        0, or 2 if it cannot serve.
    """
    return MCP.run(argv, _serve)


def _serve(parsed: Parsed[McpOptions]) -> int:
    try:
        roots = Roots(parsed.options.allowed_root or [Path.cwd()])
    except ValueError as error:
        raise UsageError(f"{parsed.source('allowed-root')}: {error}") from None
    try:
        from undaunted.services.mcp import make_server
    except ModuleNotFoundError as error:
        raise UsageError(
            f"it needs the package {error.name}: pip install 'undaunted[mcp]'"
        ) from None
    from undaunted.services.analysts import Analyst
    from undaunted.services.tools import LIMIT_S, Tools

    make_server(Tools(roots, Analyst(roots, LIMIT_S))).run()
    return 0
