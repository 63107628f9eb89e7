"""Adapter to Ray: `run` has a launcher of one job on each of some nodes of a Ray cluster.

    results = run(train, {"lr": 0.1}, nodes=4, nproc_per_node=8, resources_per_node={"GPU": 8})

Ray chooses the nodes, starts the launchers, shows what they print and ends them with the driver.
What happens to the ranks is undaunted's: docs/ray.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import secrets
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undaunted.base.ids import new_run_id
from undaunted.fault_tolerance.launch import LaunchError, coordinate, elastic_launch
from undaunted.fault_tolerance.launch_config import LaunchConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from undaunted.fault_tolerance.launch import Entrypoint

__all__ = ["run"]

_LOG = logging.getLogger("undaunted")

# What others must say of themselves.
_FOUND_OUT = ("max_nodes", "rdzv_endpoint", "node_name")
_NOTHING_STARTED = 2  # exit code of a launcher
# Launchers of one job end together: the first one that does is not far ahead of the others.
_END_S = 30.0
# From the end of the ranks until Ray knows of it.
_MARGIN_S = 15.0
# From the end of the last launcher until that of the coordinator.
_LAST_S = 5.0
# Until it is said that nodes are waited for.
_SOON_S = 10.0


class _LostError(LaunchError):
    """A launcher, or the coordinator, was killed, and not its job: Ray starts it again."""


def run(
    entrypoint: Entrypoint,
    *args: Any,
    nodes: int,
    nproc_per_node: int | str,
    min_nodes: int | None = None,
    resources_per_node: Mapping[str, float] | None = None,
    wait_s: float = 900.0,
    **settings: Any,
) -> dict[int, Any]:
    """Run a program or a function in every rank, restarts included, and wait for its end.

    Args:
        entrypoint: a function; a Python script (``train.py``); an executable, also with arguments.
        args: of the function, or of the program (text, numbers and paths).
        nodes: how many nodes of the cluster the job has, each with one launcher.
        nproc_per_node: number of ranks of a node; also ``auto``, ``gpu`` or ``cpu``.
        min_nodes: how many of the nodes train, the others are spares; None = all of them train.
        resources_per_node: what Ray gives each launcher with its ranks, such as ``{"GPU": 8}``;
            None = one CPU.
        wait_s: how long to wait for these nodes.
        settings: of `LaunchConfig`, such as ``max_restarts`` and ``fault_tol_cfg``.

    Returns:
        What the function returned, by rank; None for each rank of a program.

    Raises:
        ImportError: Ray is not installed.
        LaunchError: the job did not finish; the first cause.
        TimeoutError: the nodes were not there in time.
        TypeError: the function or an argument cannot travel to the ranks; a setting is not known,
            or none of the caller's.
        ValueError: an argument or a setting makes no sense.
        ray.exceptions.RayError: Ray could not start the launchers, or lost them.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError("run needs Ray: pip install undaunted[ray]") from error
    resources = dict(resources_per_node or {"CPU": 1})
    _check(nodes, nodes if min_nodes is None else min_nodes, nproc_per_node, resources, settings)
    config = LaunchConfig(
        min_nodes=nodes if min_nodes is None else min_nodes,
        max_nodes=nodes,
        nproc_per_node=nproc_per_node,
        run_id=settings.pop("run_id", "") or new_run_id(),
        rdzv_endpoint="known when Ray has chosen the nodes",
        node_name=None,
        **settings,
    )
    with _reserved([resources] * nodes, wait_s) as places:
        token = secrets.token_hex(32)
        config, coordinator = _meet(ray, config, token)
        # The token stays in the environment of the process that runs it: no other task follows.
        launch = ray.remote(max_calls=1, retry_exceptions=[_LostError])(_launch)
        request = _request(resources)
        launchers = [
            launch.options(name="undaunted", **request, **place).remote(
                config, token, index, entrypoint, args
            )
            for index, place in enumerate(places)
        ]
        try:
            return _results(ray, launchers, coordinator, config.min_nodes)
        finally:
            _stop(ray, launchers, coordinator, config)


def _check(
    nodes: Any,
    min_nodes: Any,
    nproc: Any,
    resources: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> None:
    """Refuse here what a launcher or Ray would refuse under a name that the caller did not use."""
    if not isinstance(nodes, int) or nodes < 1:
        raise ValueError(f"nodes {nodes!r}: give a number, 1 or more; min_nodes makes spares")
    if not isinstance(min_nodes, int) or not 1 <= min_nodes <= nodes:
        raise ValueError(f"min_nodes {min_nodes!r}: give a number from 1 to nodes, {nodes}")
    if not (str(nproc) in {"auto", "gpu", "cpu"} or (str(nproc).isdecimal() and int(nproc) > 0)):
        raise ValueError(
            f"nproc_per_node {nproc!r}: give a number, 1 or more, or 'auto', 'gpu' or 'cpu'"
        )
    for name, amount in resources.items():
        if not isinstance(amount, (int, float)) or not amount >= 0:
            raise ValueError(f"resources_per_node {name!r}: {amount!r}: give a number, 0 or more")
    for name in _FOUND_OUT:
        if name in settings:
            raise TypeError(f"{name}: run finds it out from Ray; leave it out")


def _meet(ray: Any, config: LaunchConfig, token: str) -> tuple[LaunchConfig, list[Any]]:
    """Start what the launchers meet at, if anything: a coordinator on the driver's node.

    Without the driver the job ends anyway; so it survives the loss of any other node.
    """
    if not config.of_several_nodes or config.coordinator_store:
        return config, []
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    how = {"num_cpus": 0, "scheduling_strategy": here}
    endpoint = ray.get(ray.remote(_free_port).options(**how).remote())
    config = dataclasses.replace(
        config, rdzv_endpoint=endpoint, rdzv_configs={**config.rdzv_configs, "is_host": 0}
    )
    serve = ray.remote(max_calls=1, retry_exceptions=[_LostError])(_coordinate)
    return config, [serve.options(name="undaunted", **how).remote(config, token)]


def _coordinate(config: LaunchConfig, token: str) -> dict[int, Any]:
    """Be the caller of the coordinator, which ends with us and with the job; of no rank."""
    _prepare(token)
    code, said = coordinate(config)
    if code:
        error = _LostError if code < 0 else LaunchError
        raise error(code, None, None, None, said)
    return {}


def _launch(
    config: LaunchConfig, token: str, index: int, entrypoint: Entrypoint, args: Sequence[Any]
) -> dict[int, Any]:
    """Be the caller of a launcher, which ends with us; in a process of Ray's on its node."""
    _prepare(token)
    node = _node_name()
    if isinstance(entrypoint, str) and entrypoint.endswith(".py"):
        _find_script(Path(entrypoint), node)
    config = dataclasses.replace(
        config, node_name=node, rdzv_configs={**config.rdzv_configs, "rank": index}
    )
    try:
        return elastic_launch(config, entrypoint)(*args)
    except LaunchError as error:
        if not error.outcome and error.run_dir is not None:  # it began, and has not said its end
            error.__class__ = _LostError
        raise


def _prepare(token: str) -> None:
    """Make this process of Ray's one that starts something of the job."""
    os.environ["UNDAUNTED_TOKEN"] = token
    # By it Ray cancels a task; in what a shell has started with & it is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _find_script(path: Path, node: str) -> None:
    if path.exists():
        return
    remedy = "give a path on a file system that all nodes share"
    if not path.is_absolute():
        remedy = f"have Ray bring it, ray.init(runtime_env={{'working_dir': '.'}}), or {remedy}"
    problem = f"{path} is not in {Path.cwd()} of node {node}"
    raise LaunchError(_NOTHING_STARTED, None, None, None, f"{problem}; {remedy}")


def _node_name() -> str:
    """Return the host's name; more where several nodes of Ray are on it, as in a trial."""
    import ray

    host = socket.gethostname()
    alike = [node for node in ray.nodes() if node["Alive"] and node["NodeManagerHostname"] == host]
    return host if len(alike) < 2 else f"{host}-{ray.get_runtime_context().get_node_id()[:6]}"


def _free_port() -> str:
    """Return an address of this node at which nothing listens."""
    import ray

    with socket.socket() as listener:
        listener.bind(("", 0))
        return f"{ray.util.get_node_ip_address()}:{listener.getsockname()[1]}"


@contextlib.contextmanager
def _reserved(bundles: list[dict[str, float]], wait_s: float) -> Iterator[list[dict[str, Any]]]:
    """Reserve these resources, each on a node of its own; yield how a task gets to each of them."""
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = placement_group(bundles, strategy="STRICT_SPREAD")
    try:
        wanted = f"Ray has had no {len(bundles)} nodes with {bundles[0]} each for"
        soon_s = min(wait_s, _SOON_S)
        if not group.wait(soon_s):
            if wait_s > soon_s:
                _LOG.warning("%s %g s; waiting up to %g s (wait_s)", wanted, soon_s, wait_s)
            if not group.wait(wait_s - soon_s):
                raise TimeoutError(
                    f"{wanted} {wait_s:g} s; see `ray status`, ask for less (nodes, "
                    "resources_per_node), or wait longer (wait_s)"
                )
        yield [
            {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, index)}
            for index in range(len(bundles))
        ]
    finally:
        remove_placement_group(group)


def _request(resources: Mapping[str, float]) -> dict[str, Any]:
    """Return resources as Ray's tasks ask for them."""
    rest = dict(resources)
    usual = {"num_cpus": rest.pop("CPU", 0), "num_gpus": rest.pop("GPU", 0)}
    return {**usual, "memory": rest.pop("memory", None), "resources": rest}


def _results(
    ray: Any, launchers: list[Any], coordinator: list[Any], min_nodes: int
) -> dict[int, Any]:
    """Return what the ranks of all nodes returned, once the job has ended."""
    results: dict[int, Any] = {}
    errors: list[Exception] = []
    waiting = [*launchers, *coordinator]
    finished, over, lost = False, False, 0
    while any(task in launchers for task in waiting):
        # When it is over the others end soon; without enough nodes they may wait long for more.
        ended, waiting = ray.wait(waiting, timeout=_END_S if over else None)
        if not ended:
            break
        for task in ended:
            outcome, launched = _outcome(ray, task), task in launchers
            if isinstance(outcome, Exception):
                errors.append(outcome)
                lost += launched
            else:
                results.update(outcome)
                finished |= launched
            over |= finished or not launched or len(launchers) - lost < min_nodes
    if finished:  # without the nodes that were lost or left out
        return dict(sorted(results.items()))
    raise min(errors, key=_distance) from None


def _outcome(ray: Any, task: Any) -> dict[int, Any] | Exception:
    try:
        found: dict[int, Any] = ray.get(task)
    except ray.exceptions.RayTaskError as error:
        cause: Exception = error.cause
        return cause
    except ray.exceptions.RayError as error:
        lost: Exception = error
        return lost
    return found


def _distance(error: Exception) -> int:
    """Return how far from its first cause the end of a launcher is."""
    if isinstance(error, LaunchError) and error.outcome:
        return 0 if error.rank is not None else 1
    return 2


def _stop(ray: Any, launchers: list[Any], coordinator: list[Any], config: LaunchConfig) -> None:
    """End what still runs: as by Ctrl-C, then by force; nothing where all have ended."""
    term_s = config.shutdown_timeout if config.term_timeout is None else config.term_timeout
    try:
        for launcher in _running(ray, launchers):
            ray.cancel(launcher)
        _running(ray, launchers, (30.0 if term_s is None else term_s) + _MARGIN_S)
        _running(ray, coordinator, _LAST_S)  # it ends with the last launcher
    finally:
        for task in _running(ray, [*launchers, *coordinator]):
            ray.cancel(task, force=True)


def _running(ray: Any, tasks: list[Any], within_s: float = 0.0) -> list[Any]:
    """Return those that have not ended within this time.

    Ray aborts the driver when a task is cancelled whose result has just come.
    """
    if not tasks:
        return []
    running: list[Any] = ray.wait(
        tasks, num_returns=len(tasks), timeout=within_s, fetch_local=False
    )[1]
    return running
