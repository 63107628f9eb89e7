from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.coordinator.wire.talk import TOKEN, terms
from undaunted.coordinator.protocol import MAJOR, MINOR, Accepted, Challenge, Proof, Rejected
from undaunted.coordinator.wire.handshake import ClientHandshake, ServerHandshake, Step, Terms

SERVER_NONCE = bytes(range(32))
CLIENT_NONCE = bytes(range(32, 64))


def server(**changes: Any) -> ServerHandshake:
    return ServerHandshake(terms(node="", **changes), SERVER_NONCE)


def client(**changes: Any) -> ClientHandshake:
    return ClientHandshake(terms(**changes), CLIENT_NONCE)


def shake(one: ClientHandshake, other: ServerHandshake) -> tuple[Step, Step]:
    """Both sides' last words."""
    answer = one.received(other.begin())
    assert answer.send is not None
    at_server = other.received(answer.send)
    if answer.refusal:
        return answer, at_server
    assert at_server.send is not None
    return one.received(at_server.send), at_server


def encoded(message: msgspec.Struct) -> bytes:
    return msgspec.msgpack.encode(message)


def test_both_prove_themselves() -> None:
    other = server()
    at_client, at_server = shake(client(), other)
    assert at_client == Step(done=True)
    assert at_server.done
    assert not at_server.refusal
    assert other.node == "n3"


def test_who_is_no_member_need_not_know_the_name_of_the_job() -> None:
    at_client, at_server = shake(client(run_id="", node=""), server())
    assert at_client.done
    assert at_server.done
    _, at_server = shake(client(run_id="", token=b"another-token-xyz"), server())
    assert "another token" in at_server.refusal


def test_without_any_token() -> None:
    at_client, at_server = shake(client(token=b""), server(token=b""))
    assert at_client.done
    assert at_server.done


def test_the_server_begins() -> None:
    assert client().begin() is None


def test_the_token_is_never_shown_nor_sent() -> None:
    assert TOKEN.decode() not in repr(terms())
    answer = client().received(server().begin())
    assert answer.send is not None
    assert TOKEN not in answer.send


@pytest.mark.parametrize(
    ("at_node", "at_coordinator", "says", "node_adds"),
    [
        (b"another-token-xyz", TOKEN, "node n3 has another token than this job's coordinator", ""),
        (b"", TOKEN, "or none: give all nodes the same one", " (this node has no token)"),
        (TOKEN, b"", "node n3 has a token and this job's coordinator has none", ""),
    ],
)
def test_tokens_that_do_not_fit(
    at_node: bytes, at_coordinator: bytes, says: str, node_adds: str
) -> None:
    at_client, at_server = shake(client(token=at_node), server(token=at_coordinator))
    assert says in at_server.refusal
    assert at_client.refusal == at_server.refusal + node_adds
    assert not at_client.done
    assert not at_server.done


@pytest.mark.parametrize(
    ("given", "at_coordinator", "says", "adds"),
    [
        (b"another-token-xyz", TOKEN, "who asks has another token", ""),
        (b"", TOKEN, "who asks has another token", " (you have given no token)"),
        (TOKEN, b"", "who asks has a token", ""),
    ],
)
def test_a_person_is_told_of_no_nodes(
    given: bytes, at_coordinator: bytes, says: str, adds: str
) -> None:
    person = client(token=given, run_id="", node="")
    at_client, at_server = shake(person, server(token=at_coordinator))
    assert at_server.refusal.startswith(says)
    assert at_client.refusal == at_server.refusal + adds
    assert "node" not in at_client.refusal


def test_another_job_is_told_both_ids() -> None:
    at_client, at_server = shake(client(run_id="job8"), server())
    assert "node n3 belongs to job job8, this is the coordinator of job job7" in at_server.refusal
    assert at_client.refusal == at_server.refusal


def test_the_id_of_the_job_is_not_told_to_who_has_no_token() -> None:
    _, at_server = shake(client(run_id="job8", token=b""), server())
    assert "job7" not in at_server.refusal


@pytest.mark.parametrize(("major", "build"), [(MAJOR + 1, "0.3.0"), (MAJOR - 1, "0.0.9")])
def test_another_version_is_refused_with_both_versions(major: int, build: str) -> None:
    other = server()
    at_client, at_server = shake(client(major=major, build=build), other)
    expected = (
        f"node n3 runs undaunted {build} (protocol {major}), this job's coordinator 0.1.0 "
        f"(protocol {MAJOR}): install the same version on all nodes"
    )
    assert at_client.refusal == expected
    assert at_server.refusal == expected


@pytest.mark.parametrize("major", [MAJOR - 1, MAJOR + 1])
def test_versions_that_talk_otherwise_are_still_told_apart(major: int) -> None:
    hello = {"type": "Challenge", "major": major, "build": "9", "salt": [1, {"x": None}]}
    at_client = client().received(msgspec.msgpack.encode(hello))
    assert f"this job's coordinator 9 (protocol {major})" in at_client.refusal
    proof = {"type": "Proof", "major": major, "build": "9", "node": "n5", "signature": 5}
    at_server = server().received(msgspec.msgpack.encode(proof))
    assert f"node n5 runs undaunted 9 (protocol {major})" in at_server.refusal


def test_another_minor_version_and_unknown_fields_are_taken() -> None:
    at_client, at_server = shake(client(minor=7, build="0.1.9"), server())
    assert at_client.done
    assert at_server.done
    challenge = {**msgspec.msgpack.decode(server().begin()), "mood": "fine"}
    answer = client().received(msgspec.msgpack.encode(challenge))
    assert not answer.refusal
    assert answer.send is not None
    proof = {**msgspec.msgpack.decode(answer.send), "colours": ["red"]}
    assert server().received(msgspec.msgpack.encode(proof)).done


def test_a_recorded_proof_proves_nothing_to_another_challenge() -> None:
    recorded = client().received(server().begin()).send
    assert recorded is not None
    later = ServerHandshake(terms(), bytes(32))
    assert "another token" in later.received(recorded).refusal


def test_a_recorded_acceptance_proves_nothing_to_another_client() -> None:
    _, at_server = shake(client(), server())
    assert at_server.send is not None
    later = ClientHandshake(terms(), bytes(32))
    later.received(server().begin())
    assert "does not know this job's token" in later.received(at_server.send).refusal


def test_what_a_client_proves_cannot_be_sent_back_to_it() -> None:
    one = client()
    answer = one.received(encoded(Challenge(major=MAJOR, minor=0, build="", nonce=CLIENT_NONCE)))
    assert answer.send is not None
    mac = msgspec.msgpack.decode(answer.send, type=Proof).mac
    assert one.received(encoded(Accepted(mac=mac))).refusal


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_nonces_of_other_lengths_are_refused(size: int) -> None:
    challenge = Challenge(major=MAJOR, minor=0, build="", nonce=bytes(size))
    assert client().received(encoded(challenge)).refusal
    proof = Proof(major=MAJOR, minor=0, build="", run_id="job7", nonce=bytes(size), mac=b"")
    assert server().received(encoded(proof)).refusal


def test_a_server_without_the_token_is_refused() -> None:
    one = client()
    one.received(server().begin())
    refusal = one.received(encoded(Accepted(mac=bytes(32)))).refusal
    assert refusal == "what answers there does not know this job's token"


def test_a_refusal_may_come_first_and_is_made_printable() -> None:
    step = client().received(encoded(Rejected(reason="\x1b[31mfull\nup" + "x" * 5000)))
    assert step.refusal.startswith("\\x1b[31mfull up")
    assert len(step.refusal) <= 500
    assert client().received(encoded(Rejected(reason=""))).refusal


def test_names_of_strangers_are_made_printable() -> None:
    step = server().received(encoded(_proof("\x1b[2J")))
    assert "\x1b" not in step.refusal


def _proof(name: str) -> Proof:
    return Proof(major=MAJOR + 1, minor=0, build=name, run_id="r", nonce=b"", mac=b"", node=name)


Anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KEYS = ("major", "minor", "build", "run_id", "nonce", "mac", "node", "reason")
Doctored = st.builds(
    lambda kind, fields: msgspec.msgpack.encode({"type": kind, **fields}),
    st.sampled_from(["Challenge", "Proof", "Accepted", "Rejected", "Other"]),
    st.dictionaries(st.sampled_from(KEYS), Anything | st.just(1)),
)


@given(st.binary(max_size=200) | Anything.map(msgspec.msgpack.encode) | Doctored)
def test_garbage_is_refused_by_a_server(message: bytes) -> None:
    step = server().received(message)
    assert step.refusal
    assert step.send is not None
    assert not step.done


@given(st.lists(st.binary(max_size=200) | Doctored, min_size=1, max_size=3), st.booleans())
def test_garbage_is_never_accepted_by_a_client(messages: list[bytes], challenged: bool) -> None:
    one = client()
    if challenged:
        one.received(server().begin())
    for message in messages:
        step = one.received(message)
        assert not step.done
        if step.refusal:
            return


def test_deep_garbage() -> None:
    deep = b"\x82\xa5major\x01\xa1x" + b"\x91" * 60000
    assert server().received(deep).refusal
    assert client().received(deep).refusal


def test_terms_have_the_protocol_of_this_build() -> None:
    assert (Terms("r", "b").major, Terms("r", "b").minor) == (MAJOR, MINOR)
