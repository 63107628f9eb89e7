"""The etcd that coordinates a job, its keys, and the access to it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEME = "etcd://"
DEFAULT_PORT = 2379
DEFAULT_PREFIX = "undaunted"
_ENDPOINT = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[\w.-]+)(?::(?P<port>[0-9]{1,5}))?", re.ASCII)
_PREFIX = re.compile(r"[\w.-]+(?:/[\w.-]+)*", re.ASCII)


@dataclass(frozen=True)
class Access:
    """The access to etcd; the variables are those of etcdctl.

    Attributes:
        user, password: "" = without authentication.
        ca, cert, key: files in PEM; ``ca`` "" = without TLS.
    """

    user: str = ""
    password: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""


@dataclass(frozen=True)
class Store:
    """The value of ``--coordinator-store``.

    Attributes:
        endpoints: members of the etcd cluster, ``host:port`` each.
        prefix: of all keys, without slashes at its ends.
    """

    endpoints: tuple[str, ...]
    prefix: str = DEFAULT_PREFIX

    def leader_key(self, run_id: str) -> bytes:
        """Key of who leads, until it gives that up or another one claims it."""
        return f"/{self.prefix}/{run_id}/leader".encode()

    def held_key(self, run_id: str) -> bytes:
        """Key that exists while etcd hears of the leader: bound to a lease; just before that."""
        return f"/{self.prefix}/{run_id}/held".encode()

    def ledger_key(self, run_id: str) -> bytes:
        """Key of what must survive a leader."""
        return f"/{self.prefix}/{run_id}/ledger".encode()


def parse_store(text: str) -> Store:
    """Read ``etcd://HOST:PORT[,HOST:PORT...][/PREFIX]``.

    Raises:
        ValueError: it is none; the message says what is wrong.
    """
    if not text.startswith(SCHEME):
        raise ValueError(f"{text}: give etcd://HOST:PORT[,HOST:PORT]")
    hosts, slash, prefix = text.removeprefix(SCHEME).partition("/")
    if "@" in hosts:
        raise ValueError("everybody can see a command line: give user and password in ETCDCTL_USER")
    if slash and prefix and not _PREFIX.fullmatch(prefix.rstrip("/")):
        raise ValueError(f"{prefix}: a prefix has letters, digits and . _ - between single slashes")
    endpoints = tuple(_endpoint(part.strip()) for part in hosts.split(","))
    return Store(endpoints, prefix.rstrip("/") or DEFAULT_PREFIX)


def access(environ: Mapping[str, str]) -> Access:
    """Return how etcd lets us in, from the variables that etcdctl reads as well.

    Raises:
        ValueError: they contradict each other.
    """
    user, _, password = environ.get("ETCDCTL_USER", "").partition(":")
    password = password or environ.get("ETCDCTL_PASSWORD", "")
    if bool(user) != bool(password):
        raise ValueError("ETCDCTL_USER is NAME:PASSWORD, or NAME and ETCDCTL_PASSWORD is set")
    ca, cert, key = (environ.get(f"ETCDCTL_{name}", "") for name in ("CACERT", "CERT", "KEY"))
    if bool(cert) != bool(key):
        raise ValueError("ETCDCTL_CERT and ETCDCTL_KEY belong together: set both or none")
    if cert and not ca:
        raise ValueError("ETCDCTL_CERT is of use with ETCDCTL_CACERT only: set that, too")
    return Access(user, password, ca, cert, key)


def _endpoint(text: str) -> str:
    found = _ENDPOINT.fullmatch(text)
    if not found or not 0 < int(found["port"] or DEFAULT_PORT) < 65536:
        raise ValueError(f"{text or 'no host'}: give etcd://HOST:PORT, with a port from 1 to 65535")
    return text if found["port"] else f"{text}:{DEFAULT_PORT}"
