# Made from names/*.yaml by `make generated`.
"""Tools to try in-process restart out."""

from __future__ import annotations

from nvidia_resiliency_ext.inprocess.tools import inject_fault as inject_fault
