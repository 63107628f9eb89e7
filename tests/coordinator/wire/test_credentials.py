from __future__ import annotations

import os
import stat
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.coordinator.wire.talk import Recorder, Remarks, on_loop, pair, raw_peer, serving, terms
from undaunted.coordinator.protocol import Beat, Refused, Renew
from undaunted.coordinator.wire import credentials as module
from undaunted.coordinator.wire.client import connect
from undaunted.coordinator.wire.connection import WireError
from undaunted.coordinator.wire.credentials import (
    LONGEST,
    TlsError,
    TokenError,
    client_context,
    find_token,
    server_context,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.coordinator.wire.certificates import Certificate

SECRET = "correct-horse-battery"


def token_file(tmp_path: Path, content: str = SECRET + "\n", mode: int = 0o600) -> Path:
    path = tmp_path / "token"
    path.write_text(content)
    path.chmod(mode)
    return path


def refusal(path: Path | None, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(TokenError) as caught:
        find_token(environ or {}, path)
    assert SECRET not in str(caught.value)
    return str(caught.value)


def test_none_given() -> None:
    assert find_token({}) == b""
    assert find_token({"UNDAUNTED_TOKEN": ""}) == b""


def test_from_the_environment() -> None:
    assert find_token({"UNDAUNTED_TOKEN": f" {SECRET} "}) == SECRET.encode()


def test_a_file_comes_before_the_environment(tmp_path: Path) -> None:
    environ = {"UNDAUNTED_TOKEN": "another-token-another"}
    assert find_token(environ, token_file(tmp_path)) == SECRET.encode()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620, 0o460, 0o644, 0o444])
def test_a_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = token_file(tmp_path, mode=mode)
    assert refusal(path) == (
        f"token file {path}: others may use it (mode {mode:04o}); run chmod 600 on it, or "
        "mount a Secret of Kubernetes with defaultMode: 0400"
    )


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, fstat = token_file(tmp_path), os.fstat

    def of_another(fd: int) -> os.stat_result:
        known = list(fstat(fd))
        known[stat.ST_UID] = os.geteuid() + 1
        return os.stat_result(known)

    monkeypatch.setattr(os, "fstat", of_another)
    assert "belongs to user" in refusal(path)


@pytest.mark.parametrize("mode", [0o400, 0o440])
def test_a_secret_of_kubernetes_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    """A link to a file of root; with fsGroup its group may read it."""
    version = tmp_path / "..2026_11_22"
    version.mkdir()
    file = token_file(version, mode=mode)
    (tmp_path / "..data").symlink_to(version.name)
    (tmp_path / "token").symlink_to("..data/token")
    assert find_token({}, tmp_path / "token") == SECRET.encode()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    if file.stat().st_uid == 0:
        assert find_token({}, tmp_path / "token") == SECRET.encode()


def test_what_a_symbolic_link_leads_to_is_judged(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(token_file(tmp_path, mode=0o644))
    assert "others may use it (mode 0644)" in refusal(link)


def test_a_pipe_and_a_directory_are_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    assert "is no regular file" in refusal(pipe)
    assert "is no regular file" in refusal(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "no") == f"token file {tmp_path / 'no'}: No such file or directory"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty; make one with"),
        (" \n", "is empty; make one with"),
        ("short", "the token has 5 characters, it needs at least 16"),
        ("x" * (LONGEST + 1), f"has {LONGEST + 1} bytes, a token has at most {LONGEST}"),
    ],
)
def test_contents_that_are_no_token(tmp_path: Path, content: str, says: str) -> None:
    assert says in refusal(token_file(tmp_path, content))


def test_a_short_token_in_the_environment_is_not_shown() -> None:
    text = refusal(None, {"UNDAUNTED_TOKEN": "hunter2"})
    assert text.startswith("UNDAUNTED_TOKEN: the token has 7 characters")
    assert "hunter2" not in text


def test_a_file_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "token"
    first = find_token({}, path, create=True)
    assert len(first) == 64
    assert path.stat().st_mode & 0o777 == 0o600
    assert find_token({}, path, create=True) == first
    assert os.listdir(tmp_path) == ["token"]


def test_launchers_that_make_it_at_once_agree(tmp_path: Path) -> None:
    path = tmp_path / "token"
    together = threading.Barrier(8)

    def launcher(_: int) -> bytes:
        together.wait(30)
        return find_token({}, path, create=True)

    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(launcher, range(8)))
    assert len(tokens) == 1
    assert os.listdir(tmp_path) == ["token"]


def test_nothing_is_made_through_a_link(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TokenError, match="No such file"):
        find_token({}, link, create=True)
    assert os.listdir(tmp_path) == ["link"]


def test_a_disk_that_hangs_is_waited_for_no_longer_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    finished = threading.Event()

    def hang(path: Path, *, create: bool) -> bytes:
        released.wait(30)
        finished.set()
        return b""

    monkeypatch.setattr(module, "_attempt", hang)
    monkeypatch.setattr(module, "_DISK_S", 0.01)
    assert "the disk has not answered" in refusal(tmp_path / "token")
    released.set()
    assert finished.wait(30)


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
        sent = [Refused(reason=str(n) * 900_000) for n in range(3)]
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
    async with serving(at_server, tls=context, say=remarks) as server:
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
    async with serving(Recorder(), tls=server_context(*of_server), say=remarks) as server:
        async with raw_peer(server) as raw:
            raw.writer.write(b"\0\0\0\x05hello")
            await raw.rest()
        await remarks.until("TLS: ")
    async with serving(Recorder(), say=remarks) as server:
        tls = client_context(of_server.cert)
        with pytest.raises(WireError):
            await connect(f"127.0.0.1:{server.port}", Recorder(), terms(), tls=tls)


@on_loop
async def test_silence_in_the_handshake_of_tls_is_bounded(of_server: Certificate) -> None:
    remarks = Remarks()
    context = server_context(*of_server)
    async with serving(Recorder(), tls=context, say=remarks, handshake_s=0.05) as server:
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
    with pytest.raises(TlsError, match="is not, or not wholly, PEM of its kind"):
        server_context(of_server.key, of_server.key)
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
    async with serving(Recorder(), tls=server_context(*of_server), say=remarks) as server:
        address = f"127.0.0.1:{server.port}"
        with pytest.raises(WireError, match="TLS: ") as refused:
            await connect(address, Recorder(), terms(), tls=client_context(of_client.cert))
        assert refused.value.refused
        await remarks.until("TLS: ")


@on_loop
async def test_tls_on_one_side_only_is_named(of_server: Certificate) -> None:
    remarks = Remarks()
    async with serving(Recorder(), tls=server_context(*of_server), say=remarks) as server:
        with pytest.raises(WireError, match="it may use TLS, which is not used here"):
            await connect(f"127.0.0.1:{server.port}", Recorder(), terms(), timeout_s=0.3)
        await remarks.until("or not use TLS")
    async with serving(Recorder(), say=remarks) as server:
        client = client_context(of_server.cert)
        with pytest.raises(WireError, match=r"TLS|closed|reset"):
            await connect(f"127.0.0.1:{server.port}", Recorder(), terms(), tls=client)
        await remarks.until("it uses TLS, and this side does not")


@on_loop
async def test_a_client_whose_certificate_is_refused_is_told(
    of_server: Certificate, of_client: Certificate
) -> None:
    context = server_context(*of_server, ca=of_server.cert)
    async with serving(Recorder(), tls=context, say=Remarks()) as server:
        client = client_context(of_server.cert, *of_client)
        with pytest.raises(WireError, match=r"TLS: |certificate"):
            await connect(f"127.0.0.1:{server.port}", Recorder(), terms(), tls=client)
