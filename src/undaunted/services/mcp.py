"""The tools for assistants over the Model Context Protocol, on standard input and output."""

from __future__ import annotations

import functools
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError as ShownError
from mcp.types import ToolAnnotations

from undaunted import __version__
from undaunted.services.tools import ToolError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from undaunted.services.tools import Tools

_READ_ONLY = ToolAnnotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)
_ABOUT = (
    "Explains failures of PyTorch training jobs from what they have left: journals, logs, stacks, "
    "recordings of collectives. Nothing is changed. Begin with list_runs."
)


def make_server(tools: Tools) -> MCPServer[Any]:
    """Return a server with these tools, which it closes at its end."""

    @asynccontextmanager
    async def lifespan(_: MCPServer[Any]) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await tools.close()

    server = MCPServer(
        "undaunted",
        version=__version__,
        instructions=_ABOUT,
        lifespan=lifespan,
        log_level="ERROR",
    )
    for tool in (
        *(tools.list_runs, tools.explain_failure, tools.advice, tools.timeline, tools.stacks),
        *(tools.log_analyzer, tools.fr_analyzer, tools.log_fr_analyzer),
        *(tools.get_result, tools.status),
    ):
        server.tool(annotations=_READ_ONLY)(_shown(tool))

    @server.resource("attribution://{module}/{result_id}")
    async def result(module: str, result_id: str) -> str:
        """Return an earlier answer of an analyzer."""
        return json.dumps(await tools.get_result(module, result_id))

    return server


def _shown(
    tool: Callable[..., Coroutine[Any, Any, Any]],
) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Have the words of our errors reach the assistant; those of others stay here."""

    @functools.wraps(tool)
    async def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return await tool(*args, **kwargs)
        except ToolError as error:
            raise ShownError(str(error)) from None

    return call
