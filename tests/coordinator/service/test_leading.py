from __future__ import annotations

from typing import TYPE_CHECKING

from tests.coordinator.wire.talk import Recorder, Remarks, on_loop, serving, terms
from undaunted.coordinator.service import questions
from undaunted.coordinator.service.leading import Listener
from undaunted.coordinator.wire.client import connect

if TYPE_CHECKING:
    import pytest


@on_loop
async def test_who_says_nothing_after_the_handshake_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(questions, "FIRST_MESSAGE_S", 0.01)
    remarks, client = Remarks(), Recorder()
    async with serving(Listener(), say=remarks) as server:
        await connect(f"127.0.0.1:{server.port}", client, terms())
        await client.until(lambda: bool(client.ends))
        await remarks.until("it has not said what it wants within 0.01 s")
