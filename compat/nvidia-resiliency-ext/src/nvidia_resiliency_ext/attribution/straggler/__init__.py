# Made from names/*.yaml by `make generated`.
"""Slow ranks: times of sections, compared between ranks and over time."""

from __future__ import annotations

from undaunted.attribution.straggler import CallableId as CallableId
from undaunted.attribution.straggler import Detector as Detector
from undaunted.attribution.straggler import Report as Report
from undaunted.attribution.straggler import Statistic as Statistic
from undaunted.attribution.straggler import StragglerId as StragglerId
