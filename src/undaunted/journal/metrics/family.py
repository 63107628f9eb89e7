"""A metric with its samples, in nobody's format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Sample:
    """One value, with the labels that tell it from the others of its family."""

    labels: Mapping[str, str]
    value: float


@dataclass(slots=True)
class Family:
    """All samples of one metric; all have the same labels.

    Attributes:
        name: in the field's form, with its unit; a counter's ends in ``_total``.
        help: one sentence.
        kind: ``gauge``, or ``counter`` (never falls as long as the launcher lives).
        samples: none means that nothing is known.
    """

    name: str
    help: str
    kind: Literal["gauge", "counter"] = "gauge"
    samples: list[Sample] = field(default_factory=list)

    def add(self, value: float | None, **labels: object) -> Family:
        """Add a sample, unless its value is None; return this family."""
        if value is not None:
            self.samples.append(Sample({k: str(v) for k, v in labels.items()}, float(value)))
        return self
