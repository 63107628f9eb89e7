"""Adapter to Ray: `run` has a launcher of one job on each of some nodes of a Ray cluster.

    results = run(train, {"lr": 0.1}, nodes=4, nproc_per_node=8, resources_per_node={"GPU": 8})

Ray chooses the nodes, starts the launchers, shows what they print and ends them with the driver.
undaunted does the rest: docs/ray.md.
"""

from __future__ import annotations

import _thread
import contextlib
import dataclasses
import logging
import os
import secrets
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undaunted.base.ids import new_run_id
from undaunted.base.signals import SAME_S
from undaunted.base.text import one_line
from undaunted.fault_tolerance.launch import LaunchError, coordinate, elastic_launch
from undaunted.fault_tolerance.launch_config import LaunchConfig
from undaunted.integrations.ray_nodes import Nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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
# From a look at the place of a launcher that was started again to the next one.
_LOOK_S = 10.0
# How often one launcher of several, or the coordinator, is started again.
_AGAIN = 3
# Abseil's handler, which Ray installs, has the driver aborted so many seconds after SIGTERM.
_ALARM_S = 3.0
# So long a Ctrl-C may wait while a thread waits for Ray.
_SLICE_S = 1.0
_KILLED = 128 + signal.SIGKILL  # exit code
_PREEMPTED = 75  # exit code
# From a question whether Ray drains a node to the next one; it tells nobody.
_ASK_S = 5.0


class _LostError(LaunchError):
    """A launcher, or the coordinator, was killed, and not its job: it is started again."""


class _DrainedError(LaunchError):
    """Ray drains the node of a launcher, which was told to stop: its ranks have saved."""


@dataclasses.dataclass
class _Member:
    """A launcher, or the coordinator: a task of Ray's that is started again when it is lost.

    Attributes:
        name: for people.
        start: starts its task; the number says how often it was started before.
        again: how often it may be started again.
        task: the last one.
        starts: how many there were.
    """

    name: str
    start: Callable[[int], Any]
    again: int
    task: Any = None
    starts: int = 0

    def begin(self) -> None:
        """Start its task.

        Not as a part of the task that calls `run`, if one does: with that Ray would cancel it, and
        take it for ended while it still saves.
        """
        self.task = _apart(partial(self.start, self.starts))
        self.starts += 1


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
        args: of the function, or of the program (text, numbers and paths). One that is an
            ``ObjectRef`` arrives as its value.
        nodes: how many nodes of the cluster the job has, each with one launcher.
        nproc_per_node: number of ranks of a node; also ``auto``, ``gpu`` or ``cpu``.
        min_nodes: how many of the nodes train, the others are spares; None = all of them train.
            The job begins without spares that are not there after a minute; they join later.
        resources_per_node: what Ray gives each launcher with its ranks, such as ``{"GPU": 8}``;
            None = one CPU.
        wait_s: how long to wait for these nodes.
        settings: of `LaunchConfig`, such as ``max_restarts`` and ``fault_tol_cfg``.

    Returns:
        The results of the function, by rank; None for each rank of a program.

    Raises:
        ImportError: Ray is not installed.
        LaunchError: the job did not finish; the first cause.
        TimeoutError: the nodes were not there in time.
        TypeError: the function or an argument cannot travel to the ranks, as a handle of an actor,
            or a return value cannot travel back; a setting is not known, or none of the caller's.
        ValueError: an argument or a setting makes no sense.
        ray.exceptions.RayError: Ray could not start the launchers.
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
    if callable(entrypoint):
        _check_travel(ray, entrypoint, args)
    while True:
        places = Nodes(ray, resources, nodes, config.min_nodes, wait_s)
        try:
            return _run_on(ray, places, config, resources, entrypoint, args)
        except _DrainedError as error:
            _LOG.warning("%s; the job begins again on other nodes", error.message)


def _run_on(
    ray: Any,
    places: Nodes,
    config: LaunchConfig,
    resources: Mapping[str, float],
    entrypoint: Entrypoint,
    args: Sequence[Any],
) -> dict[int, Any]:
    """Run the job on nodes that are reserved now.

    Raises:
        _DrainedError: Ray drains one of them, and the job could not go on without it.
    """
    nodes = config.max_nodes
    members: list[_Member] = []
    coordinator: list[_Member] = []
    try:
        ways = places.reserve()
        token = secrets.token_hex(32)
        config, coordinator = _meet(ray, config, token)
        # The token stays in the environment of the process that runs it: no other task follows.
        # Ray's own retries are without a limit where its memory monitor kills.
        launch = ray.remote(max_calls=1, max_retries=0)(_launch)
        request = _request(resources)

        def launcher(index: int, way: dict[str, Any], *, joins: bool = False) -> _Member:
            options = launch.options(name="undaunted", **request, **way)

            def start(before: int) -> Any:
                this = config
                if nodes == 1:  # nobody else knows how often it was started
                    this = dataclasses.replace(config, max_restarts=config.max_restarts - before)
                return options.remote(this, token, index, joins, entrypoint, *args)

            again = config.max_restarts if nodes == 1 else _AGAIN
            return _Member(f"the launcher of node {index}", start, again)

        members += [launcher(index, way) for index, way in enumerate(ways)]
        for member in [*coordinator, *members]:
            member.begin()
        return _results(ray, members, coordinator, places, launcher, config.min_nodes)
    finally:
        try:
            tasks = [member.task for member in members if member.task is not None]
            _stop(ray, tasks, [member.task for member in coordinator if member.task], config)
        finally:
            places.release()


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


def _check_travel(ray: Any, function: Callable[..., Any], args: Sequence[Any]) -> None:
    """Refuse what means nothing in a rank, which is no process of Ray's."""
    for what, value in (
        (f"the function {getattr(function, '__qualname__', function)}", function),
        *((f"argument {at}", arg) for at, arg in enumerate(args, start=1)),
    ):
        if isinstance(value, ray.ObjectRef):
            continue  # Ray resolves it on the node of the launcher
        for found in _values_of_ray(ray, value):
            if isinstance(found, ray.ObjectRef):
                remedy = "give the ObjectRef itself as an argument, or its value, ray.get(ref)"
            else:
                remedy = (
                    "give the actor a name; in the function, call ray.init(address='auto', "
                    "namespace=...) and ray.get_actor(name)"
                )
            kind = type(found).__name__
            raise TypeError(f"{what} holds an {kind}, which no rank can use: {remedy}")


def _values_of_ray(ray: Any, value: Any) -> list[Any]:
    """Return the refs and handles of actors in a value, wherever they are in it."""
    from ray import cloudpickle

    found: list[Any] = []

    class Finder(cloudpickle.Pickler):  # type: ignore[misc]
        def persistent_id(self, value: Any) -> int | None:
            if not isinstance(value, (ray.ObjectRef, ray.actor.ActorHandle)):
                return None
            found.append(value)
            return len(found)

    class Nowhere:
        def write(self, data: Any) -> int:
            return len(data)

    with contextlib.suppress(Exception):  # Ray refuses it in a moment, in its own words
        Finder(Nowhere()).dump(value)
    return found


def _meet(ray: Any, config: LaunchConfig, token: str) -> tuple[LaunchConfig, list[_Member]]:
    """Choose what the launchers meet at, if anything: a coordinator on the driver's node.

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
    serve = ray.remote(max_calls=1, max_retries=0)(_coordinate).options(name="undaunted", **how)
    return config, [_Member("the coordinator", lambda _: serve.remote(config, token), _AGAIN)]


def _coordinate(config: LaunchConfig, token: str) -> dict[int, Any]:
    """Be the caller of the coordinator, which ends with us and with the job; of no rank."""
    _prepare(token)
    code, said = coordinate(config)
    if code:
        error = _LostError if code < 0 else LaunchError
        raise error(code, None, None, None, said)
    return {}


def _launch(
    config: LaunchConfig, token: str, index: int, joins: bool, entrypoint: Entrypoint, *args: Any
) -> dict[int, Any]:
    """Be the caller of a launcher, which ends with us; in a process of Ray's on its node."""
    drained = _prepare(token)
    node = _node_name()
    if joins:  # Ray may have put another one of the job here when that lost its node
        node = f"{node}-{index}"
    if isinstance(entrypoint, str) and entrypoint.endswith(".py"):
        _find_script(Path(entrypoint), node)
    config = dataclasses.replace(
        config, node_name=node, rdzv_configs={**config.rdzv_configs, "rank": index}
    )
    over = threading.Event()
    threading.Thread(target=_watch_for_drain, args=(node, drained, over), daemon=True).start()
    try:
        return elastic_launch(config, entrypoint)(*args)
    except LaunchError as error:
        if not error.outcome and error.run_dir is not None:  # it began, and has not said its end
            error.__class__ = _LostError
        raise
    finally:
        over.set()


def _watch_for_drain(node: str, drained: list[str], over: threading.Event) -> None:
    """Have the main thread tell its launcher to stop once Ray drains this node."""
    import ray

    try:
        here, state = ray.get_runtime_context().get_node_id(), ray._private.state.state  # noqa: SLF001
        while here not in state.get_draining_nodes():
            if over.wait(_ASK_S):
                return
    except Exception as error:  # noqa: BLE001 - the job does not depend on it
        _LOG.warning(
            "node %s: cannot ask whether Ray drains it (%s); its ranks would not be told",
            *(node, one_line(str(error), longest=200)),
        )
        return
    if not over.is_set():
        drained.append(f"Ray drains node {node}")
        _thread.interrupt_main(signal.SIGINT)


def _prepare(token: str) -> list[str]:
    """Make this process of Ray's one that starts something of the job.

    Returns:
        A list; once it has a line, SIGINT means that this node is drained.
    """
    os.environ["UNDAUNTED_TOKEN"] = token
    cancelled: list[bool] = []
    drained: list[str] = []

    def cancel(*_: object) -> None:
        # Only a forced cancellation kills; this one may come twice, from a signal sent twice.
        if not cancelled:
            cancelled.append(True)
            if drained:
                raise _saying(drained[0], _DrainedError(_PREEMPTED, None, None, None))
            raise KeyboardInterrupt

    # By it Ray cancels a task; in what a shell has started with & it is ignored.
    signal.signal(signal.SIGINT, cancel)
    return drained


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


def _request(resources: Mapping[str, float]) -> dict[str, Any]:
    """Return resources as Ray's tasks ask for them."""
    rest = dict(resources)
    usual = {"num_cpus": rest.pop("CPU", 0), "num_gpus": rest.pop("GPU", 0)}
    return {**usual, "memory": rest.pop("memory", None), "resources": rest}


def _results(
    ray: Any,
    members: list[_Member],
    coordinator: list[_Member],
    places: Nodes,
    launcher: Callable[..., _Member],
    min_nodes: int,
) -> dict[int, Any]:
    """Return what the ranks of all nodes returned, once the job has ended."""
    results: dict[int, Any] = {}
    errors: list[Exception] = []
    memory = ""
    drained = _Drained(min_nodes)
    waiting = [*members, *coordinator]
    finished, over, lost = False, False, 0
    while any(member in members for member in waiting):
        coming = None if over else places.one_more(len(members) - drained.count)
        tasks = [member.task for member in waiting] + [coming] * (coming is not None)
        alone = len(tasks) == 1 and members[0].starts > 1
        # When it is over the others end soon; without enough nodes they may wait long for more.
        limit_s = _END_S if over else _LOOK_S if alone else None
        ended, _ = ray.wait(tasks, timeout=limit_s)
        if not ended:
            if over:
                break
            places.await_again()
            continue
        if ended[0] is coming or ended[0] == coming:
            members.append(launcher(len(members), places.take(), joins=True))
            members[-1].begin()
            waiting.append(members[-1])
            continue
        member = next(member for member in waiting if member.task == ended[0])
        outcome, launched = _outcome(ray, member.task), member in members
        if isinstance(outcome, Exception):
            loss = _loss(ray, outcome)
            if isinstance(outcome, ray.exceptions.OutOfMemoryError):
                memory = f"{member.name}: {loss}"
            if loss and not over and member.starts <= member.again:
                _LOG.warning(
                    "%s was lost: %s; it is started again (%d of %d)",
                    *(member.name, loss, member.starts, member.again),
                )
                member.begin()
                continue
            errors.append(_given_up(member, outcome, loss) if loss else outcome)
            lost += launched
            drained.note(outcome, len(members) - lost)
        else:
            results.update(outcome)
            finished |= launched
        waiting.remove(member)
        over |= finished or not launched or len(members) - lost < min_nodes
    if finished and not any(isinstance(error, TypeError) for error in errors):
        return dict(sorted(results.items()))  # without the nodes that were lost or left out
    raise drained.instead_of(_with_memory(min(errors, key=_distance), memory)) from None


class _Drained:
    """Nodes of the job that Ray has drained.

    Attributes:
        count: how many.
    """

    def __init__(self, min_nodes: int) -> None:
        self.count = 0
        self._min_nodes = min_nodes
        self._needed: _DrainedError | None = None

    def note(self, error: Exception, left: int) -> None:
        """A launcher has ended; so many are left."""
        if isinstance(error, _DrainedError):
            _LOG.warning("%s: its ranks were told to save", error.message)
            self.count += 1
            if left < self._min_nodes:
                self._needed = error

    def instead_of(self, error: Exception) -> Exception:
        """Return what is raised: nothing has failed if the others stopped for want of a node."""
        stopped = isinstance(error, _DrainedError) or getattr(error, "outcome", "") == "preempted"
        return self._needed if self._needed is not None and stopped else error


def _loss(ray: Any, error: Exception) -> str:
    """Say how a launcher or the coordinator was lost, "" = it was not; it may be started again."""
    found = ray.exceptions
    if isinstance(error, found.OutOfMemoryError):
        return f"Ray's memory monitor killed it: {one_line(str(error), longest=300)}"
    if isinstance(error, (found.NodeDiedError, found.LocalRayletDiedError)):
        return "its node was lost"
    if isinstance(error, found.WorkerCrashedError):
        return "its process of Ray's was killed"
    return error.message if isinstance(error, _LostError) else ""


def _given_up(member: _Member, error: Exception, loss: str) -> LaunchError:
    """Return what is raised for one that was lost and is not started again."""
    often = f" {member.starts} times" if member.starts > 1 else ""
    said = f"{member.name} was lost{often}: {loss}"
    return _saying(said, LaunchError(_KILLED, None, None, getattr(error, "run_dir", None)))


def _saying(message: str, error: LaunchError) -> LaunchError:
    """Return an error that says just this."""
    error.message, error.args = message, (message,)
    return error


def _with_memory(error: Exception, memory: str) -> Exception:
    """Let an error that comes of a loss say what Ray's memory monitor did."""
    if memory and isinstance(error, LaunchError) and memory not in error.message:
        error.message = f"{error.message}; {memory}"
        error.args = (f"{error}\n{memory}",)
    return error


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
    if isinstance(error, TypeError):  # a return value cannot travel
        return -1
    if isinstance(error, LaunchError) and error.outcome:
        return 0 if error.rank is not None else 1
    return 3 if isinstance(error, _DrainedError) else 2


def _stop(ray: Any, launchers: list[Any], coordinator: list[Any], config: LaunchConfig) -> None:
    """End what still runs: as by Ctrl-C, then by force; nothing where all have ended."""
    term_s = config.shutdown_timeout if config.term_timeout is None else config.term_timeout
    began, running = time.monotonic(), _running(ray, launchers)
    try:
        while True:
            try:
                _end_alarm()
                while running:
                    _apart(partial(ray.cancel, running.pop(0)))
                _running(ray, launchers, (30.0 if term_s is None else term_s) + _MARGIN_S)
                _running(ray, coordinator, _LAST_S)  # it ends with the last launcher
                break
            except BaseException:
                if time.monotonic() - began >= SAME_S:
                    raise
                # a signal that came twice
    finally:
        for task in _running(ray, [*launchers, *coordinator]):
            _apart(partial(ray.cancel, task, force=True))


def _end_alarm() -> None:
    """Call off the abort that Ray has set for 3 s after SIGTERM, unless SIGALRM is the caller's."""
    if not callable(signal.getsignal(signal.SIGALRM)):
        left_s, _ = signal.getitimer(signal.ITIMER_REAL)
        if left_s <= _ALARM_S:
            signal.alarm(0)


def _running(ray: Any, tasks: list[Any], within_s: float = 0.0) -> list[Any]:
    """Return those that have not ended within this time.

    Ray aborts the driver when a task is cancelled whose result has just come.
    """
    until = time.monotonic() + within_s
    running = tasks
    while running:
        left_s = until - time.monotonic()
        wait = partial(ray.wait, running, num_returns=len(running), fetch_local=False)
        slice_s = max(0.0, min(_SLICE_S, left_s))
        running = _apart(partial(wait, timeout=slice_s))[1]
        if left_s <= _SLICE_S:
            break
    return running


def _apart(call: Callable[[], Any]) -> Any:
    """Call Ray as no part of the task that we are in, if any: in a cancelled one it refuses."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call).result()
