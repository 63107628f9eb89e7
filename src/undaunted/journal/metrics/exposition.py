"""Families in the formats of Prometheus, by the package prometheus-client."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from prometheus_client import Metric

    from undaunted.journal.metrics.family import Family

REMEDY = "needs the package prometheus-client: pip install 'undaunted[metrics]'"


def is_possible() -> bool:
    """Tell whether the package is there; nothing is imported."""
    return find_spec("prometheus_client") is not None


def exposition(families: Sequence[Family], accept: str = "") -> tuple[bytes, str]:
    """Write families as a text that Prometheus reads.

    Args:
        families: metrics; none is there twice.
        accept: what the scraper understands, as in its header ``Accept``; "" = plain text.

    Returns:
        The text, and its content type.

    Raises:
        ModuleNotFoundError: the package is missing.
    """
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(families))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Collector:
    """Hands families to prometheus-client."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return all metrics."""
        return [_metric(family) for family in self._families]


def _metric(family: Family) -> Metric:
    from prometheus_client import Metric

    metric = Metric(family.name.removesuffix("_total"), family.help, family.kind)
    for sample in family.samples:
        metric.add_sample(family.name, dict(sample.labels), sample.value)
    return metric
