"""Tools for tests of NVRx's users."""

from __future__ import annotations
