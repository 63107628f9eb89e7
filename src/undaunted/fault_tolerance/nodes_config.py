"""A launcher's knowledge of the other nodes of its job."""

from __future__ import annotations

from typing import Literal

import msgspec


class Nodes(msgspec.Struct, kw_only=True, frozen=True):
    """The nodes of a job and how they find each other.

    Attributes:
        min_nodes, max_nodes: ``--nnodes``.
        elastic: up to ``max_nodes`` take part; otherwise ``min_nodes`` do and the rest are spares.
        restart_policy: what happens when ranks of a node fail.
        endpoints: where the coordinator is, ``host:port`` each; the first one is its host.
        is_host: this launcher serves the coordinator; None = not known before the name of the first
            endpoint is.
        store: ``etcd://...`` = it is decided there who serves it, and ``endpoints`` may be empty;
            "" = by the nodes.
        beside_host: another launcher on this machine serves it, and its port is left to that one.
        named: the user has given this node its name; otherwise several launchers on a host find
            names of their own.
        address: of this host, as the others reach it; "" = not known before such a name is.
        infra_rank: place in the scheduler's order; None = it gives none.
        domain: NVLink domain, "" = one of its own.
        group: replacement group, "" = none.
        replacement_group_size: nodes of a complete one; 0 = groups do not matter.
        segment: nodes of a segment within one domain; 0 = domains do not matter.
        token_file: "" = the token is in ``UNDAUNTED_TOKEN`` or there is none.
        tls_ca, tls_cert, tls_key: files; "" = no TLS.
        takeover: another node may take the coordinator's place.
        join_timeout_s: how long a round waits for its nodes; also without a coordinator.
        first_round_timeout_s: the same for the first round, and until a coordinator is found.
        last_call_s: how long the first round waits for more nodes once there are enough.
        lease_s: a node that is silent for so long is lost.
        away_timeout_s: where nobody can take over, ranks go on so long without a coordinator.
    """

    min_nodes: int
    max_nodes: int
    endpoints: list[str]
    is_host: bool | None
    address: str
    beside_host: bool = False
    named: bool = False
    elastic: bool = False
    restart_policy: Literal["any-failed", "min-healthy"] = "any-failed"
    infra_rank: int | None = None
    domain: str = ""
    group: str = ""
    replacement_group_size: int = 0
    segment: int = 0
    store: str = ""
    token_file: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    takeover: bool = True
    join_timeout_s: float = 300.0
    first_round_timeout_s: float = 900.0
    last_call_s: float = 1.0
    lease_s: float = 5.0
    away_timeout_s: float = 60.0
