"""The tools as an assistant finds them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from mcp import Client

from tests.coordinator.wire.talk import on_loop
from tests.services.test_tools import Place
from undaunted import __version__
from undaunted.services.mcp import make_server

if TYPE_CHECKING:
    import pytest

NAMES = {
    *("list_runs", "explain_failure", "advice", "timeline", "stacks"),
    *("log_analyzer", "fr_analyzer", "log_fr_analyzer", "get_result", "status"),
}


@on_loop
async def test_tools_say_what_they_are_for_and_that_they_only_read(tmp_path: Path) -> None:
    place = Place(tmp_path)
    async with Client(make_server(place.tools)) as client:
        assert client.server_info.version == __version__
        found = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert found.keys() == NAMES
    for tool in found.values():
        assert tool.description
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint
        assert not tool.annotations.destructive_hint
    assert found["stacks"].input_schema["required"] == ["run"]
    page = (Path(__file__).parents[2] / "docs" / "attribution-service.md").read_text()
    assert {name for name in NAMES if f"`{name}`" not in page} == set()


@on_loop
async def test_answers_and_errors_reach_the_assistant(tmp_path: Path) -> None:
    place = Place(tmp_path)
    async with Client(make_server(place.tools)) as client:
        said = await client.call_tool("status", {})
        assert json.loads(said.content[0].text)["allowed_roots"] == [str(place.root)]
        refused = await client.call_tool("stacks", {"run": "/etc"})
        assert refused.is_error
        assert "/etc is not below" in refused.content[0].text
        # What NVRx's clients send besides.
        words = {"run": str(place.run), "model": "x", "exclude_nvrx_logs": True}
        assert "stacks are kept" in (await client.call_tool("stacks", words)).content[0].text
        place.tools._keep("log_analyzer", {"result": "text"})
        kept = await client.read_resource("attribution://log_analyzer/1")
        assert json.loads(kept.contents[0].text)["result"] == "text"


@on_loop
async def test_errors_of_ours_stay_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path)

    async def fail() -> None:
        raise KeyError("secret")

    monkeypatch.setattr(place.tools, "status", fail)
    async with Client(make_server(place.tools)) as client:
        said = await client.call_tool("status", {})
    assert said.is_error
    assert "secret" not in said.content[0].text
