# Made from names/*.yaml by `make generated`.
"""Exceptions of in-process restart."""

from __future__ import annotations

from undaunted.inprocess.exception import HealthCheckError as HealthCheckError
from undaunted.inprocess.exception import InternalError as InternalError
from undaunted.inprocess.exception import RestartAbort as RestartAbort
from undaunted.inprocess.exception import RestartError as RestartError
from undaunted.inprocess.exception import TimeoutError as TimeoutError  # noqa: A004 - NVRx's name
