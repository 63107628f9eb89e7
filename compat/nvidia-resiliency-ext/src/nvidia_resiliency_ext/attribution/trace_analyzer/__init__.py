"""Not built: importing this says so."""

from __future__ import annotations

from nvidia_resiliency_ext._not_built import refuse

refuse(__name__)
