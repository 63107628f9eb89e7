"""Gathers the facts of this node: all probes at once, none waited for longer than its deadline."""

from __future__ import annotations

import os
import queue
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from undaunted.base.text import one_line
from undaunted.doctor import probes as look
from undaunted.doctor.facts import Facts
from undaunted.health.check import GPU_DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from undaunted.coordinator.wire.address import Address
    from undaunted.doctor.known_issues import KnownIssues
    from undaunted.doctor.probes import Children

_QUICK_S = 15.0
_SPARE_S = 5.0  # beyond what a probe promises itself


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """The places to look at, as the user says.

    Attributes:
        node: name of this node.
        python: interpreter of the ranks.
        hosts: other hosts, each with the port to try.
        directories: for checkpoints and for logs: path and purpose.
        etcd: members of an etcd that coordinates the job.
        stores: where ranks or nodes will meet, by what says so: an option, a variable.
    """

    node: str
    python: str
    hosts: tuple[Any, ...] = ()  # of `Address`
    directories: tuple[tuple[str, str], ...] = ()
    etcd: tuple[Any, ...] = ()  # of `Address`
    stores: dict[str, Any] = {}  # of `Address`


class Probe(NamedTuple):
    """One thing to find out.

    Attributes:
        name: for people, where it gives no answer.
        deadline_s: how long it is waited for.
        call: returns facts by the names of the fields of `Facts`; may raise.
    """

    name: str
    deadline_s: float
    call: Callable[[], dict[str, Any]]


def probes(places: Places, issues: KnownIssues, children: Children) -> list[Probe]:
    """Return everything that is to be found out; nothing has begun."""
    known = known_variables(issues)
    found = [
        Probe(
            "kernel",
            _QUICK_S,
            lambda: look.of_kernel() | {"environ": look.environ_of(os.environ, known)},
        ),
        Probe("limits of the container", _QUICK_S, lambda: {"cgroup": look.of_cgroup()}),
        Probe("file systems", _QUICK_S, look.of_file_systems),
        Probe("own name", _QUICK_S, lambda: {"names": look.of_names()}),
        Probe("software", look.SOFTWARE_S, lambda: _software(children, places.python)),
        Probe("GPU driver", GPU_DEADLINE_S, lambda: _gpus(children)),
        Probe("Slurm", _QUICK_S, lambda: _slurm(children)),
    ]
    if places.hosts:
        found.append(Probe("hosts", look.ALL_S, lambda: _hosts(places.hosts)))
    if places.stores:
        found.append(Probe("rendezvous", look.ALL_S, lambda: _stores(places.stores)))
    if places.directories:
        seconds = look.DISK_S * len(places.directories) + 2 * _QUICK_S
        found.append(Probe("directories", seconds, lambda: _disks(children, places)))
    found += [Probe(f"etcd {member}", _QUICK_S, partial(_etcd, member)) for member in places.etcd]
    return found


def known_variables(issues: KnownIssues) -> set[str]:
    """Return the variables of the environment that known issues are about."""
    names_of_rows = {name for issue in issues.variables for name in issue.variables}
    return names_of_rows | {name for issue in issues.versions for name in issue.unless}


def gather(node: str, todo: Sequence[Probe]) -> Facts:
    """Make all probes; return what they have found, and why some have not.

    Each runs in a daemon thread, which is left behind when time runs out.
    """
    answers: queue.SimpleQueue[tuple[int, dict[str, Any]]] = queue.SimpleQueue()
    began = time.monotonic()
    for number, probe in enumerate(todo):
        arguments = (number, probe, answers)
        name = f"undaunted-probe-{number}"
        try:
            threading.Thread(target=_run, args=arguments, name=name, daemon=True).start()
        except RuntimeError as error:  # there may be no more threads
            answers.put((number, {"unknown": {probe.name: str(error)}}))
    return merged(node, todo, _answers(answers, todo, began))


def _run(number: int, probe: Probe, answers: queue.SimpleQueue[tuple[int, dict[str, Any]]]) -> None:
    try:
        answers.put((number, probe.call()))
    except Exception as error:  # noqa: BLE001 - told to the user; others go on
        answers.put((number, {"unknown": {probe.name: one_line(repr(error), longest=200)}}))


def _answers(
    answers: queue.SimpleQueue[tuple[int, dict[str, Any]]], todo: Sequence[Probe], began: float
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield answers as they come, until all have, or are late."""
    left = set(range(len(todo)))
    while left:
        last = began + _SPARE_S + max(todo[number].deadline_s for number in left)
        try:
            number, found = answers.get(timeout=max(0.0, last - time.monotonic()))
        except queue.Empty:
            return
        left.discard(number)
        yield number, found


def merged(
    node: str, todo: Sequence[Probe], answers: Iterable[tuple[int, dict[str, Any]]]
) -> Facts:
    """Put the answers together; dictionaries of several probes are joined, the later ones count."""
    fields: dict[str, Any] = {"node": node}
    left = set(range(len(todo)))
    by_number = dict(answers)
    for number in sorted(by_number):
        left.discard(number)
        for name, value in by_number[number].items():
            joined = isinstance(value, dict) and isinstance(fields.get(name), dict)
            fields[name] = fields[name] | value if joined else value
    late = {
        todo[number].name: f"no answer within {todo[number].deadline_s:.0f} s"
        for number in sorted(left)
    }
    return Facts(**fields | {"unknown": fields.get("unknown", {}) | late})


def _software(children: Children, python: str) -> dict[str, Any]:
    versions, torch_problem, problem = look.of_software(children, python)
    return {
        "python": python,
        "versions": versions,
        "torch_problem": torch_problem,
        "unknown": {"software": problem} if problem else {},
    }


def _gpus(children: Children) -> dict[str, Any]:
    found, version = look.of_gpus(children)
    return {"gpus": found, "versions": {"nvidia-driver": version} if version else {}}


def _slurm(children: Children) -> dict[str, Any]:
    settings, problem = look.of_slurm(children, os.environ)
    return {"slurm": settings, "unknown": {"scontrol show config": problem} if problem else {}}


def _hosts(hosts: Sequence[Address]) -> dict[str, Any]:
    return {"remotes": look.of_remotes(hosts)}


def _stores(stores: Mapping[str, Address]) -> dict[str, Any]:
    return {"stores": dict(zip(stores, look.of_remotes([*stores.values()]), strict=True))}


def _disks(children: Children, places: Places) -> dict[str, Any]:
    """One after the other: two trials on one disk would slow each other down."""
    return {
        "trials": tuple(
            look.of_disk(children, path, purpose) for path, purpose in places.directories
        )
    }


def _etcd(member: Address) -> dict[str, Any]:
    version, problem = look.of_etcd(member.host, member.port)
    if problem:
        return {"unknown": {f"etcd {member}": problem}}
    return {"versions": {"etcd": version}}
