"""The replacement group: nodes that can only be replaced together."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def replacement_group(environ: Mapping[str, str]) -> str:
    """Return the name of this node's group; "" = none.

    ``NVRX_REPLACEMENT_GROUP_ID``, or else the task of a Slurm job array.
    """
    explicit = environ.get("NVRX_REPLACEMENT_GROUP_ID", "").strip()
    return explicit or environ.get("SLURM_ARRAY_TASK_ID", "").strip()
