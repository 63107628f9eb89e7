from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.coordinator.wire.talk import Recorder, Remarks, on_loop, pair, raw_peer, serving, terms
from undaunted.coordinator.protocol import Beat, EndOrder, Renew
from undaunted.coordinator.wire.client import connect
from undaunted.coordinator.wire.errors import WireError
from undaunted.coordinator.wire.tls import TlsError, client_context, server_context

if TYPE_CHECKING:
    from pathlib import Path

    from tests.coordinator.wire.certificates import Certificate


@on_loop
async def test_messages_over_tls(of_server: Certificate) -> None:
    at_server = Recorder(lambda connection, message: connection.send(Beat(epoch=message.epoch)))
    at_client = Recorder()
    async with pair(
        at_server,
        at_client,
        tls=server_context(*of_server),
        client_tls=client_context(of_server.cert),
    ) as (_, client, _server):
        assert client.send(Renew(epoch=4))
        await at_client.until(lambda: bool(at_client.messages))
        assert at_client.messages == [Beat(epoch=4)]


@on_loop
async def test_long_messages_over_tls(of_server: Certificate) -> None:
    at_server, at_client = Recorder(), Recorder()
    tls = {"tls": server_context(*of_server), "client_tls": client_context(of_server.cert)}
    async with pair(at_server, at_client, **tls) as (served, _client, _server):
        sent = [EndOrder(number=n, epoch=1, outcome="", reason=str(n) * 900_000) for n in range(3)]
        for order in sent:
            assert served.send(order)
            await at_client.until(lambda: bool(at_client.messages))
            assert at_client.messages.pop() == order


@on_loop
async def test_clients_show_certificates_where_they_are_asked_for(
    of_server: Certificate, of_client: Certificate
) -> None:
    at_server, remarks = Recorder(), Remarks()
    context = server_context(*of_server, ca=of_client.cert)
    async with serving(at_server, tls=context, remark=remarks) as server:
        address = f"127.0.0.1:{server.port}"
        good = client_context(of_server.cert, *of_client)
        at_client = Recorder()
        client = await connect(address, at_client, terms(), tls=good)
        client.close("enough")
        await at_client.until(lambda: bool(at_client.ends))
        with pytest.raises(WireError, match=r"(?i)certificate|closed|reset"):
            await connect(address, Recorder(), terms(), tls=client_context(of_server.cert))
        assert "TLS: peer did not return a certificate" in await remarks.until("TLS")


@on_loop
async def test_a_server_with_another_certificate_is_refused(
    of_server: Certificate, of_client: Certificate
) -> None:
    async with serving(Recorder(), tls=server_context(*of_server)) as server:
        tls = client_context(of_client.cert)
        with pytest.raises(WireError, match=r"TLS: self.signed certificate"):
            await connect(f"127.0.0.1:{server.port}", Recorder(), terms(), tls=tls)


@on_loop
async def test_a_certificate_for_another_name_is_refused(of_client: Certificate) -> None:
    async with serving(Recorder(), tls=server_context(*of_client)) as server:
        tls = client_context(of_client.cert)
        with pytest.raises(WireError, match="TLS: IP address mismatch"):
            await connect(f"127.0.0.1:{server.port}", Recorder(), terms(), tls=tls)


@on_loop
async def test_one_side_without_tls(of_server: Certificate) -> None:
    remarks = Remarks()
    async with serving(Recorder(), tls=server_context(*of_server), remark=remarks) as server:
        async with raw_peer(server) as raw:
            raw.writer.write(b"\0\0\0\x05hello")
            await raw.rest()
        await remarks.until("TLS: ")
    async with serving(Recorder(), remark=remarks) as server:
        tls = client_context(of_server.cert)
        with pytest.raises(WireError):
            await connect(f"127.0.0.1:{server.port}", Recorder(), terms(), tls=tls)


@on_loop
async def test_silence_in_the_handshake_of_tls_is_bounded(of_server: Certificate) -> None:
    remarks = Remarks()
    context = server_context(*of_server)
    async with serving(Recorder(), tls=context, remark=remarks, handshake_s=0.05) as server:
        async with raw_peer(server) as raw:
            await raw.rest()
        await remarks.until("no handshake within 50 ms")


@on_loop
async def test_who_hangs_up_while_tls_is_set_up_is_forgotten(of_server: Certificate) -> None:
    async with serving(Recorder(), tls=server_context(*of_server)) as server:
        async with raw_peer(server) as raw:
            raw.writer.write(b"\x16\x03\x01")
            await raw.writer.drain()
            raw.writer.write_eof()
            await raw.rest()
        server._gone.clear()
        if server._connections:
            await server._gone.wait()
        assert server._half_open == {}


def test_files_that_are_not_there_are_named(of_server: Certificate, tmp_path: Path) -> None:
    missing = tmp_path / "no.pem"
    for make in (
        lambda: server_context(missing, of_server.key),
        lambda: server_context(of_server.cert, missing),
        lambda: server_context(*of_server, ca=missing),
        lambda: client_context(missing),
    ):
        with pytest.raises(TlsError, match=f"^{missing}: No such file or directory"):
            make()


def test_files_that_do_not_fit_are_named(of_server: Certificate, of_client: Certificate) -> None:
    with pytest.raises(TlsError, match=f"{of_server.cert} with key {of_client.key}: key values m"):
        server_context(of_server.cert, of_client.key)
    with pytest.raises(TlsError, match=f"{of_server.key}: no certificate"):
        client_context(of_server.key)
    with pytest.raises(TlsError, match="only of use together"):
        client_context(of_server.cert, cert=of_client.cert)


def test_a_key_with_a_password_is_refused_and_nobody_is_asked(
    of_server: Certificate, tmp_path: Path
) -> None:
    locked = tmp_path / "locked.key"
    subprocess.run(
        f"openssl pkey -in {of_server.key} -aes128 -passout pass:secret -out {locked}".split(),
        check=True,
        capture_output=True,
        timeout=60,
    )
    with pytest.raises(TlsError, match=f"{locked}: the key has a password; give one without"):
        server_context(of_server.cert, locked)


@on_loop
async def test_both_sides_say_that_the_client_does_not_trust_the_server(
    of_server: Certificate, of_client: Certificate
) -> None:
    remarks = Remarks()
    async with serving(Recorder(), tls=server_context(*of_server), remark=remarks) as server:
        address = f"127.0.0.1:{server.port}"
        with pytest.raises(WireError, match="TLS: ") as refused:
            await connect(address, Recorder(), terms(), tls=client_context(of_client.cert))
        assert refused.value.refused
        await remarks.until("TLS: ")


@on_loop
async def test_tls_on_one_side_only_is_named(of_server: Certificate) -> None:
    remarks = Remarks()
    async with serving(Recorder(), tls=server_context(*of_server), remark=remarks) as server:
        with pytest.raises(WireError, match="it may use TLS, and this node does not"):
            await connect(f"127.0.0.1:{server.port}", Recorder(), terms(), timeout_s=0.3)
        await remarks.until("or not use TLS")
    async with serving(Recorder(), remark=remarks) as server:
        client = client_context(of_server.cert)
        with pytest.raises(WireError, match=r"TLS|closed|reset"):
            await connect(f"127.0.0.1:{server.port}", Recorder(), terms(), tls=client)
        await remarks.until("it uses TLS, and this side does not")


@on_loop
async def test_a_client_whose_certificate_is_refused_is_told(
    of_server: Certificate, of_client: Certificate
) -> None:
    context = server_context(*of_server, ca=of_server.cert)
    async with serving(Recorder(), tls=context, remark=Remarks()) as server:
        client = client_context(of_server.cert, *of_client)
        with pytest.raises(WireError, match=r"TLS: |certificate"):
            await connect(f"127.0.0.1:{server.port}", Recorder(), terms(), tls=client)
