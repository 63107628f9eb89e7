"""Tools that the other packages of NVRx share."""

from __future__ import annotations
