"""`undaunted mcp`: a real server, talked to over standard input and output."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest
from mcp import Client, StdioServerParameters

from tests.coordinator.wire.talk import on_loop
from tests.services.test_tools import Place
from undaunted.base.process import module_command
from undaunted.cli.mcp import main

if TYPE_CHECKING:
    from pathlib import Path


def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("undaunted.services.mcp", "mcp.server.mcpserver"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    assert main([]) == 2
    assert "pip install 'undaunted[mcp]'" in capsys.readouterr().err


@pytest.mark.e2e
@on_loop
async def test_an_assistant_explains_a_run(tmp_path: Path) -> None:
    place = Place(tmp_path)
    command, *words = module_command("undaunted.cli.main", "mcp", f"--allowed-root={place.root}")
    server = StdioServerParameters(command=command, args=words, env=dict(os.environ))
    async with Client(server) as client:
        (said,) = (await client.call_tool("list_runs", {})).content
        assert json.loads(said.text)["run"] == str(place.run)
        (page,) = (await client.call_tool("explain_failure", {"run": str(place.run)})).content
        assert json.loads(page.text)["rounds"]
        log = {"log_path": str(place.run / "a.log")}
        (said,) = (await client.call_tool("log_analyzer", log)).content
        assert json.loads(said.text)["findings"]
        refused = await client.call_tool("log_analyzer", {"log_path": "/etc/passwd"})
        assert refused.is_error
        assert "outside_root" in refused.content[0].text
