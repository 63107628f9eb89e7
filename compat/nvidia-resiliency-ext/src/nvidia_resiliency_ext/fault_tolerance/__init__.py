"""In-job restart, under the names of NVRx."""

from __future__ import annotations
