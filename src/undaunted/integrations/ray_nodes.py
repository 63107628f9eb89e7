"""Nodes of a Ray cluster for one job: reserved together, awaited; more of them may come later.

Ray reserves all nodes of a group or none. So a job with `min_nodes` asks for all of its nodes
first, then for `min_nodes` of them, and from then on for one more at a time.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOG = logging.getLogger("undaunted")

# Ray waits in C++, which hears no Ctrl-C. SIGTERM aborts a driver 3 s later.
_SLICE_S = 1.0
# Until a line says what is missing, and from line to line.
_SOON_S, _AGAIN_S = 10.0, 60.0
# So long all nodes are waited for where fewer would do.
_ALL_S = 60.0


class Nodes:
    """The nodes of one job, each with the resources of one launcher."""

    def __init__(
        self, ray: Any, resources: Mapping[str, float], most: int, least: int, wait_s: float
    ) -> None:
        """Reserve nothing yet.

        Args:
            ray: the package.
            resources: of each node.
            most: how many nodes are wanted.
            least: how many of them do to begin with.
            wait_s: how long to wait for these.
        """
        self._ray = ray
        self._resources = dict(resources)
        self._most, self._least = most, least
        self._wait_s = wait_s
        self._groups: list[Any] = []
        self._coming: Any = None

    def reserve(self) -> list[dict[str, Any]]:
        """Wait for the nodes; return how a task gets to each of them.

        Raises:
            TimeoutError: they were not there in time.
        """
        all_s = self._wait_s
        if self._least < self._most:
            all_s = min(_ALL_S, self._wait_s / 2)
        began = time.monotonic()
        group = self._ask(self._most)
        if not self._await(group, self._most, began, all_s):
            if self._least == self._most:
                raise TimeoutError(self._missing(self._most, self._wait_s) + _REMEDY)
            self._release(group)
            group = self._ask(self._least)
            if not self._await(group, self._least, began, self._wait_s):
                raise TimeoutError(self._missing(self._least, self._wait_s) + _REMEDY)
            _LOG.warning(
                "begins with %d of %d nodes; the others join when Ray has them",
                self._least,
                self._most,
            )
        count = len(group.bundle_specs)
        return [self._way(group, index) for index in range(count)]

    def await_again(self) -> None:
        """Wait until nodes that were lost have others in their places.

        Raises:
            TimeoutError: there were none in time.
        """
        group, began = self._groups[0], time.monotonic()
        if not self._await(group, self._least, began, self._wait_s):
            raise TimeoutError(self._missing(self._least, self._wait_s) + _REMEDY)

    def one_more(self, count: int) -> Any:
        """Return what `ray.wait` finds ready when one more node is there, None = all are.

        Args:
            count: how many nodes the job has.
        """
        if self._coming is None and count < self._most:
            table = self._ray.util.placement_group_table
            taken = {
                node
                for group in self._groups
                for node in table(group)["bundles_to_node_id"].values()
                if node
            }
            self._coming = self._ask(1, without=taken).ready()
        return self._coming

    def take(self) -> dict[str, Any]:
        """Return how a task gets to the node that has come."""
        self._coming = None
        return self._way(self._groups[-1], 0)

    def release(self) -> None:
        """Give all nodes back."""
        for group in list(self._groups):
            self._release(group)

    def _ask(self, count: int, without: set[str] | None = None) -> Any:
        from ray.util.placement_group import placement_group

        selector = None
        if without:
            selector = [{"ray.io/node-id": f"!in({','.join(sorted(without))})"}] * count
        group = placement_group(
            [self._resources] * count, strategy="STRICT_SPREAD", bundle_label_selector=selector
        )
        self._groups.append(group)
        return group

    def _release(self, group: Any) -> None:
        from ray.util.placement_group import remove_placement_group

        self._groups.remove(group)
        remove_placement_group(group)

    def _way(self, group: Any, index: int) -> dict[str, Any]:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, index)}

    def _await(self, group: Any, count: int, began: float, wait_s: float) -> bool:
        """Return whether this group is there within so many seconds of a moment."""
        waited = time.monotonic() - began
        say_s = _SOON_S
        while not group.wait(max(0.0, min(_SLICE_S, wait_s - waited))):
            waited = time.monotonic() - began
            if waited >= wait_s:
                return False
            if waited >= say_s:
                _LOG.warning(
                    "%s; waiting up to %g s (wait_s)", self._missing(count, waited), self._wait_s
                )
                say_s = waited + _AGAIN_S
        return True

    def _missing(self, count: int, waited_s: float) -> str:
        """Say what Ray does not have."""
        what = f"Ray has had no {count} nodes with {self._resources} each for {waited_s:.0f} s"
        totals = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        wanted = {name: amount for name, amount in self._resources.items() if amount}
        unknown = [name for name in wanted if not any(name in total for total in totals)]
        if unknown:
            known = sorted({name for total in totals for name in total if ":" not in name})
            return f"{what}; no node has {unknown[0]!r}, they have {', '.join(known)}"
        fitting = sum(
            all(total.get(name, 0) >= amount for name, amount in wanted.items()) for total in totals
        )
        if fitting < count:
            return f"{what}; {fitting} of {len(totals)} nodes have that much at all"
        return f"{what}; other work of the cluster holds them"


_REMEDY = "; see `ray status`, ask for less (nodes, resources_per_node), or wait longer (wait_s)"
