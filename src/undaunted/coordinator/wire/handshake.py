"""Two sides prove to each other that they know the job's token. Pure: messages in and out.

Each side sends a nonce of 32 random bytes, and a code made with the token. The code covers both
nonces, so that what was recorded once proves nothing later, and from the side's role, so that it
cannot be sent back to who made it.

`major`, `build` and `node` of the first messages, and `Rejected`, stay as they are in every version
of the protocol: two versions can always tell each other that they do not fit.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from undaunted.base.text import one_line
from undaunted.coordinator import protocol
from undaunted.coordinator.protocol import Accepted, Challenge, Proof, Rejected

NONCE_BYTES = 32

_LONGEST_NAME = 80  # characters of a name that are shown

T = TypeVar("T")


@dataclass(frozen=True)
class Terms:
    """The terms of one side for its handshakes.

    Attributes:
        run_id: the job; "" = whichever is served there, for a client that is no member of it.
        build: version of undaunted.
        token: what the members of the job know, b"" = there is none. Never shown.
        node: name of this node, "" = on no node.
        major, minor: version of the protocol.
    """

    run_id: str
    build: str
    token: bytes = field(default=b"", repr=False)
    node: str = ""
    major: int = protocol.MAJOR
    minor: int = protocol.MINOR


class Step(NamedTuple):
    """The consequences of a message.

    Attributes:
        send: message for the other side, None = nothing.
        done: the other side has proved itself, and this side has.
        refusal: why there will be no connection, "" = nothing speaks against it.
    """

    send: bytes | None = None
    done: bool = False
    refusal: str = ""


class Handshake(Protocol):
    """One side of a handshake.

    Attributes:
        node: name of the other side's node, "" = unknown. Believe it when the handshake is done.
    """

    node: str

    def begin(self) -> bytes | None:
        """Return the first message for the other side, None = it begins."""

    def received(self, message: bytes) -> Step:
        """Take in a message of the other side. Not called any more after done or refusal."""


class ServerHandshake:
    """The side that is connected to; see `Handshake`."""

    def __init__(self, terms: Terms, nonce: bytes) -> None:
        """``nonce``: 32 random bytes, new for every handshake."""
        self.node = ""
        self._terms = terms
        self._nonce = nonce

    def begin(self) -> bytes:
        """Return the challenge."""
        own = self._terms
        return _encode(
            Challenge(major=own.major, minor=own.minor, build=own.build, nonce=self._nonce)
        )

    def received(self, message: bytes) -> Step:
        """Judge the proof, in the answer as well."""
        step = self._judge(message)
        return step._replace(send=_encode(Rejected(reason=step.refusal))) if step.refusal else step

    def _judge(self, message: bytes) -> Step:
        own = self._terms
        version = _read(_Version, message)
        if version is None or version.major is None:
            return Step(refusal="what came is no handshake")
        self.node = _shown(version.node)
        if version.major != own.major:
            return Step(refusal=_misfit(version, _Version.of(own)))
        proof = _read(Proof, message)
        if proof is None or len(proof.nonce) != NONCE_BYTES:
            return Step(refusal="what came is no handshake")
        expected = _code(own.token, b"client", self._nonce, proof.nonce, proof.run_id)
        if not hmac.compare_digest(proof.mac, expected):
            return Step(refusal=_wrong_token(self.node, proof.run_id, own))
        if proof.run_id not in ("", own.run_id):
            return Step(refusal=_wrong_run(self.node, proof.run_id, own.run_id))
        mac = _code(own.token, b"server", self._nonce, proof.nonce, proof.run_id)
        return Step(send=_encode(Accepted(mac=mac)), done=True)


class ClientHandshake:
    """The side that connects; see `Handshake`."""

    def __init__(self, terms: Terms, nonce: bytes) -> None:
        """``nonce``: 32 random bytes, new for every handshake."""
        self.node = ""
        self._terms = terms
        self._nonce = nonce
        self._challenge: Challenge | None = None
        self.heard = False
        """True when the server has said anything."""

    def begin(self) -> None:
        """Wait for the challenge."""

    def received(self, message: bytes) -> Step:
        """Answer the challenge, then judge the server's own proof."""
        self.heard = True
        if (rejected := _read(Rejected, message)) is not None:
            return Step(refusal=self._refusal(rejected))
        return self._answer(message) if self._challenge is None else self._judge(message)

    def _answer(self, message: bytes) -> Step:
        version = _read(_Version, message)
        if version is None or version.major is None:
            return Step(refusal="what answers there is no undaunted")
        if version.major != self._terms.major:
            # The other side hears it as well, for its log.
            refusal = _misfit(_Version.of(self._terms), version)
            return Step(send=self._proof(b""), refusal=refusal)
        self._challenge = _read(Challenge, message)
        if self._challenge is None or len(self._challenge.nonce) != NONCE_BYTES:
            return Step(refusal="what answers there is no undaunted")
        own = self._terms
        mac = _code(own.token, b"client", self._challenge.nonce, self._nonce, own.run_id)
        return Step(send=self._proof(mac))

    def _proof(self, mac: bytes) -> bytes:
        own = self._terms
        return _encode(
            Proof(
                major=own.major,
                minor=own.minor,
                build=own.build,
                run_id=own.run_id,
                nonce=self._nonce,
                mac=mac,
                node=own.node,
            )
        )

    def _judge(self, message: bytes) -> Step:
        accepted = _read(Accepted, message)
        if accepted is None or self._challenge is None:
            return Step(refusal="what answers there is no undaunted")
        own = self._terms
        expected = _code(own.token, b"server", self._challenge.nonce, self._nonce, own.run_id)
        if not hmac.compare_digest(accepted.mac, expected):
            return Step(refusal="what answers there does not know this job's token")
        return Step(done=True)

    def _refusal(self, rejected: Rejected) -> str:
        reason = one_line(rejected.reason) or "refused without a reason"
        here = "this node has" if self._terms.run_id else "you have given"
        return reason if self._terms.token else f"{reason} ({here} no token)"


class _Version(msgspec.Struct, frozen=True):
    """The part of the first messages that every version has."""

    major: int | None = None
    build: str = ""
    node: str = ""

    @staticmethod
    def of(terms: Terms) -> _Version:
        return _Version(terms.major, terms.build, terms.node)


_ENCODER = msgspec.msgpack.Encoder()


def _encode(message: protocol.Handshake) -> bytes:
    return _ENCODER.encode(message)


def _read(kind: type[T], message: bytes) -> T | None:
    try:
        return msgspec.msgpack.decode(message, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _code(token: bytes, role: bytes, server: bytes, client: bytes, run_id: str) -> bytes:
    # Role and nonces have fixed lengths: nothing can be read in two ways.
    said = role + server + client + run_id.encode()
    return hmac.digest(token, said, "sha256")


def _misfit(client: _Version, server: _Version) -> str:
    return (
        f"{_named(_shown(client.node))} runs undaunted {_shown(client.build)} "
        f"(protocol {client.major}), this job's coordinator {_shown(server.build)} "
        f"(protocol {server.major}): install the same version on all nodes"
    )


def _wrong_token(node: str, run_id: str, own: Terms) -> str:
    if own.token:
        what = "has another token than this job's coordinator, or none"
        all_nodes = "give all nodes the same one"
    else:
        what = "has a token and this job's coordinator has none"
        all_nodes = "give it to all nodes or to none"
    return f"{_named(node)} {what}: {all_nodes}" if run_id else f"who asks {what}"


def _wrong_run(node: str, asked: str, own: str) -> str:
    return (
        f"{_named(node)} belongs to job {_shown(asked)}, this is the coordinator of job "
        f"{_shown(own)}: check --rdzv-id and --rdzv-endpoint"
    )


def _named(node: str) -> str:
    return f"node {node}" if node else "a node"


def _shown(name: str) -> str:
    return one_line(name, longest=_LONGEST_NAME)
