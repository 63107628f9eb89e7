"""Slow ranks: times of sections of the program, compared between ranks and over time.

    from undaunted.attribution import straggler

    straggler.Detector.initialize()
    with straggler.Detector.detection_section("forward"):
        ...
    report = straggler.Detector.generate_report()

Names are imported when they are first used; torch only when ranks exchange times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from undaunted.attribution.straggler.detector import CallableId as CallableId
    from undaunted.attribution.straggler.detector import Detector as Detector
    from undaunted.attribution.straggler.manager import (
        NVRxStragglerDetectionConfig as NVRxStragglerDetectionConfig,
    )
    from undaunted.attribution.straggler.manager import (
        NVRxStragglerDetectionManager as NVRxStragglerDetectionManager,
    )
    from undaunted.attribution.straggler.report import Report as Report
    from undaunted.attribution.straggler.report import Statistic as Statistic
    from undaunted.attribution.straggler.report import StragglerId as StragglerId

_MODULES = {
    "CallableId": "detector",
    "Detector": "detector",
    "NVRxStragglerDetectionConfig": "manager",
    "NVRxStragglerDetectionManager": "manager",
    "Report": "report",
    "Statistic": "report",
    "StragglerId": "report",
}
__all__ = [*_MODULES]  # noqa: PLE0604 - names are strings

__getattr__ = lazy_names(__name__, _MODULES)
