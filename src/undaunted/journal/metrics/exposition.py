"""Families of metrics, and the formats of Prometheus for them, by the package prometheus-client."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from prometheus_client import Metric

REMEDY = "needs the package prometheus-client: pip install 'undaunted[metrics]'"


@dataclass(frozen=True, slots=True)
class Sample:
    """One value, with the labels that tell it from the others of its family.

    ``suffix`` of the name: which part of a histogram it is, "" = there are no parts.
    """

    labels: Mapping[str, str]
    value: float
    suffix: str = ""


@dataclass(slots=True)
class Family:
    """All samples of one metric; all have the same labels.

    Attributes:
        name: in the field's form, with its unit; a counter's ends in ``_total``: it never falls as
            long as the launcher lives.
        help: one sentence.
        samples: none means that nothing is known.
    """

    name: str
    help: str
    samples: list[Sample] = field(default_factory=list)

    @property
    def kind(self) -> Literal["gauge", "counter", "histogram"]:
        """Its type for Prometheus."""
        if self.name.endswith("_total"):
            return "counter"
        return "histogram" if any(sample.suffix for sample in self.samples) else "gauge"

    def add(self, value: float | None, **labels: object) -> Family:
        """Add a sample, unless its value is None; return this family."""
        if value is not None:
            self.samples.append(Sample({k: str(v) for k, v in labels.items()}, float(value)))
        return self

    def observe(self, values: Sequence[float], bounds: Sequence[float], **labels: object) -> Family:
        """Add a histogram of values, unless there are none; return this family.

        Args:
            values: what was measured.
            bounds: of the buckets, rising; one more takes what is beyond.
            labels: of all its samples.
        """
        if not values:
            return self
        about = {key: str(value) for key, value in labels.items()}
        for bound in (*bounds, math.inf):
            below = float(sum(value <= bound for value in values))
            le = "+Inf" if bound == math.inf else f"{bound:g}"
            self.samples.append(Sample({**about, "le": le}, below, "_bucket"))
        self.samples.append(Sample(about, math.fsum(values), "_sum"))
        self.samples.append(Sample(about, float(len(values)), "_count"))
        return self

    def labelled(self, **labels: str) -> Family:
        """Add labels to all samples; return this family."""
        self.samples = [replace(each, labels={**each.labels, **labels}) for each in self.samples]
        return self


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
        metric.add_sample(family.name + sample.suffix, dict(sample.labels), sample.value)
    return metric
