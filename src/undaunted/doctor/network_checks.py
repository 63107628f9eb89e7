"""From facts about names, addresses and ports to findings. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.base.sizes import whole
from undaunted.base.text import one_line
from undaunted.coordinator.wire.address import is_loopback

if TYPE_CHECKING:
    from undaunted.doctor.advice import Advice, Severity
    from undaunted.doctor.facts import Asked, Facts, Remote
    from undaunted.doctor.known_issues import KnownIssues


NETWORK = "network"


def network(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Advice]:
    """Own name, families of addresses, ports, the queue of connections, other hosts."""
    return [
        *_own_name(facts, asked, issues),
        *_families(facts, issues),
        *_ports(facts, asked, issues),
        *_backlog(facts, asked, issues),
        *_loopback(facts, issues),
        *_interfaces(facts, issues),
        *(finding for remote in facts.remotes for finding in _remote(remote, issues)),
        *(finding for name in facts.stores for finding in _store(name, facts, issues)),
    ]


def _own_name(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Advice]:
    issue = issues.setting("L15")
    names = facts.names
    severity: Severity = (
        "warn" if asked.nnodes > 1 else "info"
    )  # on one node nobody else has to come here
    if names.problem:
        found = f"own name {one_line(names.host)}: {names.problem}"
        return [issue.finding(NETWORK, found, "warn", wanted=issue.wanted)]
    if not names.addresses:
        return []
    shown = f"own name {one_line(names.host)} leads to {', '.join(names.addresses)}"
    if all(is_loopback(address) for address in names.addresses):
        return [issue.finding(NETWORK, shown, severity, wanted=issue.wanted)]
    foreign = [
        address
        for address in names.addresses
        if not is_loopback(address) and names.local and address not in names.local
    ]
    if foreign and len(foreign) == sum(not is_loopback(one) for one in names.addresses):
        found = f"{shown}, which is not this host"
        return [issue.finding(NETWORK, found, "warn", wanted=issue.wanted)]
    return []


def _families(facts: Facts, issues: KnownIssues) -> list[Advice]:
    if facts.names.ipv6 is not False:
        return []
    for name, addresses in (
        (facts.names.host, facts.names.addresses),
        *((remote.host, remote.addresses) for remote in facts.remotes),
    ):
        if any(":" in address for address in addresses):
            found = f"{one_line(name)} has an address of IPv6, the kernel has no IPv6"
            return [issues.setting("L16").finding(NETWORK, found)]
    return []


def _ports(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Advice]:
    words = facts.settings.get("net.ipv4.ip_local_port_range", "").split()
    bounds = [whole(word) for word in words]
    if len(bounds) != 2 or bounds[0] is None or bounds[1] is None:
        return []
    issue = issues.setting("L13")
    wanted = f"outside of {bounds[0]} to {bounds[1]}"
    findings = []
    asked_for = (
        ("the port of the rendezvous", asked.port),
        ("MASTER_PORT", whole(facts.environ.get("MASTER_PORT")) or 0),
    )
    for what, port in asked_for:
        if bounds[0] <= port <= bounds[1]:
            findings.append(issue.finding(NETWORK, f"{what} is {port}", wanted=wanted))
    return findings


def _backlog(facts: Facts, asked: Asked, issues: KnownIssues) -> list[Advice]:
    most = whole(facts.settings.get("net.core.somaxconn"))
    ranks = asked.nnodes * (asked.nproc_per_node or 1)
    if most is None or most >= ranks:
        return []
    found = f"net.core.somaxconn is {most}, with {ranks} ranks"
    return [issues.setting("L14").finding(NETWORK, found, wanted=f"at least {ranks}")]


def _remote(remote: Remote, issues: KnownIssues) -> list[Advice]:
    if not remote.problem:
        return []
    return [issues.setting("N01").finding(NETWORK, f"{one_line(remote.host)}: {remote.problem}")]


def _loopback(facts: Facts, issues: KnownIssues) -> list[Advice]:
    if not facts.names.loopback:
        return []
    found = f"127.0.0.1 cannot be connected to: {facts.names.loopback}"
    return [issues.setting("N04").finding(NETWORK, found)]


def _interfaces(facts: Facts, issues: KnownIssues) -> list[Advice]:
    """Variables that name interfaces: gloo wants whole names, NCCL beginnings of them."""
    issue = next(issue for issue in issues.variables if issue.id == "E28")
    there = facts.names.interfaces
    findings = []
    for name in issue.variables:
        value = facts.environ.get(name, "").strip()
        if not there or not value or value.startswith("^"):
            continue
        gloo = name == "GLOO_SOCKET_IFNAME"
        asked = [word.partition(":")[0].strip() for word in value.removeprefix("=").split(",")]
        if gloo or value.startswith("="):
            missing = [word for word in asked if word not in there]
        else:
            missing = [word for word in asked if not any(one.startswith(word) for one in there)]
        # Gloo wants every one of them, NCCL one of them.
        if missing and (gloo or len(missing) == len(asked)):
            severity: Severity = "fail" if gloo else "warn"
            found = f"{name}={one_line(value)}: there is no {one_line(missing[0])} here"
            wanted = f"one of {', '.join(there)}"
            findings.append(issue.finding(NETWORK, found, severity, wanted=one_line(wanted)))
    return findings


def _store(name: str, facts: Facts, issues: KnownIssues) -> list[Advice]:
    """Nobody must listen yet where ranks or nodes will meet."""
    issue, store = issues.setting("N03"), facts.stores[name]
    where = f"{name}: {one_line(store.host)}"
    if store.problem:
        # undaunted run gives its ranks another MASTER_ADDR.
        severity: Severity = "warn" if name == "MASTER_ADDR" else "fail"
        return [issue.finding(NETWORK, f"{where}: {store.problem}", severity, wanted=issue.wanted)]
    if store.answer == "open":
        found = f"{where}: somebody listens at port {store.port} already"
        return [issue.finding(NETWORK, found, "warn", wanted=issue.wanted)]
    return []
