"""What is said over the socket of a launcher, and where it is."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import msgspec
import pytest

from undaunted.base.unix_sockets import listen_at
from undaunted.fault_tolerance import control_socket as s

if TYPE_CHECKING:
    from pathlib import Path

QUESTIONS: list[s.Question] = [
    s.Status(),
    s.Stacks(),
    s.Flight(),
    s.Dump(),
    s.Restart(save=True),
    s.Stop(),
    s.Exclude(target="b"),
    s.Limits(limits={"heartbeat": 600.0, "section:step": None}),
]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda each: type(each).__name__)
def test_every_question_can_be_asked(question: s.Question) -> None:
    assert s.question_of(msgspec.json.encode(question)) == question


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"\xff\xff",
        b"[" * 60_000,
        b'{"action":"unheard"}',
        b'{"action":"exclude"}',
        b'{"action":"exclude","target":""}',
        b'{"action":"limits","limits":{}}',
        b'{"action":"limits","limits":{"heartbeat":0}}',
        b'{"action":"limits","limits":{"heartbeat":1e12}}',
        b'{"action":"limits","limits":{"nothing_s":1}}',
    ],
)
def test_what_is_no_question_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="no question that this launcher knows"):
        s.question_of(data)


def test_one_that_is_too_long_is_not_read() -> None:
    with pytest.raises(ValueError, match="65537 bytes; 65536 are the most"):
        s.question_of(b" " * (s.MOST_ASKED + 1))


def test_another_version_is_named() -> None:
    with pytest.raises(ValueError, match="version 2; this launcher knows 1"):
        s.question_of(b'{"v":2,"action":"of another time"}')


def test_every_node_has_a_socket_of_its_own() -> None:
    names = [s.file_name(node) for node in ("a", "b", "n" * 99, "n" * 98 + "m")]
    assert names[0] == "ctl-a.sock"
    assert len(set(names)) == 4
    assert all(len(name) <= 64 for name in names)


def test_a_path_that_is_too_long_for_an_address_can_be_used(tmp_path: Path) -> None:
    place = tmp_path / ("a" * 100) / "ctl-a.sock"
    place.parent.mkdir()
    with s.address_of(place) as address, listen_at(address, socket.SOCK_STREAM, 1) as listening:
        with (
            s.address_of(place) as again,
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link,
        ):
            link.connect(again)
        listening.accept()[0].close()
    assert place.is_socket()
