"""Sends metrics to a collector of OpenTelemetry, every 15 s, from a thread of its own."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from undaunted.base.text import one_line
from undaunted.journal.metrics.otlp import metrics_url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from undaunted.journal.metrics.exposition import Family

EVERY_S = 15.0
SEND_S = 5.0
_LAST_S = 1.0
_LOGGER = "opentelemetry"


class Push:
    """Sends until it is closed, and once more then. One that fails is not sent again."""

    def __init__(
        self,
        endpoint: str,
        read: Callable[[], list[Family]],
        *,
        about: Mapping[str, str],
        say: Callable[[str], None],
        every_s: float = EVERY_S,
        send_s: float = SEND_S,
    ) -> None:
        """Start the thread.

        Args:
            endpoint: URL of the collector, or ``env``; see `metrics_url`.
            read: returns the metrics as they are now; called in the thread.
            about: what the metrics are about: attributes of the resource.
            say: told the first time that sending fails, in the thread.
            every_s: seconds from one to the next.
            send_s: longest that one may take, in seconds.
        """
        self._endpoint = endpoint
        self._read = read
        self._about = dict(about)
        self._say = say
        self._every_s = every_s
        self._send_s = send_s
        self._stop = threading.Event()
        self._exporter: Any = None
        self._complaint = _Complaint()
        self._said = False
        self._thread = threading.Thread(target=self._run, name="undaunted-otlp", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = 2.0) -> bool:
        """Send once more and end the thread; False if time ran out, and it is left behind.

        Where the last attempt has failed there is no other one.
        """
        self._stop.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        began_ns = time.time_ns()
        ending, problem = False, ""
        with contextlib.suppress(Exception):  # imports now: at the end of a job there is no time
            self._opened()
        while not ending:
            ending = self._stop.wait(self._every_s)
            if ending and problem:
                break
            problem = self._send(began_ns, min(self._send_s, _LAST_S) if ending else self._send_s)
            if problem and not self._said:
                self._said = True
                with contextlib.suppress(Exception):
                    self._say(
                        f"metrics could not be sent to {self._place()}: {problem}; the job goes "
                        f"on, and the next ones are sent every {self._every_s:g} s"
                    )
        if self._exporter is not None:
            logging.getLogger(_LOGGER).removeHandler(self._complaint)
            with contextlib.suppress(Exception):
                self._exporter.shutdown()

    def _place(self) -> str:
        return metrics_url(self._endpoint) or "the endpoint in OTEL_EXPORTER_OTLP_ENDPOINT"

    def _send(self, began_ns: int, timeout_s: float) -> str:
        """Send what is known now; return what went wrong, "" = nothing."""
        try:
            exporter = self._opened()
            from opentelemetry.sdk.metrics.export import MetricExportResult

            data = metrics_data(self._read(), self._about, began_ns, time.time_ns())
            result = exporter.export(data, timeout_millis=timeout_s * 1000)
            if result is MetricExportResult.SUCCESS:
                return ""
        except Exception as error:  # noqa: BLE001 - whatever it is, the job goes on
            return one_line(f"{type(error).__name__}: {error}")
        return one_line(self._complaint.text or "it was not taken")

    def _opened(self) -> Any:
        if self._exporter is None:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

            # It tells a logger about each failure, and we tell the user once.
            logger = logging.getLogger(_LOGGER)
            logger.addHandler(self._complaint)
            logger.propagate = False
            self._exporter = OTLPMetricExporter(
                endpoint=metrics_url(self._endpoint), timeout=self._send_s
            )
        return self._exporter


def metrics_data(
    families: Sequence[Family], about: Mapping[str, str], began_ns: int, now_ns: int
) -> Any:
    """Return families as OpenTelemetry has them: gauges, and sums since ``began_ns``.

    Args:
        families: metrics.
        about: attributes of the resource.
        began_ns: Unix time, nanoseconds.
        now_ns: likewise.
    """
    from opentelemetry.sdk.metrics import export as otel
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    metrics = []
    for family in families:
        points = [
            otel.NumberDataPoint(dict(sample.labels), began_ns, now_ns, sample.value)
            for sample in family.samples
        ]
        data: Any
        if family.kind == "histogram":
            data = _histogram(family, began_ns, now_ns)
        elif family.kind == "counter":
            data = otel.Sum(points, otel.AggregationTemporality.CUMULATIVE, is_monotonic=True)
        else:
            data = otel.Gauge(points)
        metrics.append(otel.Metric(family.name, family.help, _unit(family.name), data))
    resource = Resource.create({"service.name": "undaunted", **about})
    scope = otel.ScopeMetrics(InstrumentationScope("undaunted"), metrics, "")
    return otel.MetricsData([otel.ResourceMetrics(resource, [scope], "")])


def _histogram(family: Family, began_ns: int, now_ns: int) -> Any:
    """Return the one histogram of a family: counts of each bucket, not of all below it."""
    from opentelemetry.sdk.metrics import export as otel

    below = [sample for sample in family.samples if sample.suffix == "_bucket"]
    counts = [round(sample.value) for sample in below]
    point = otel.HistogramDataPoint(
        attributes={k: v for k, v in below[0].labels.items() if k != "le"},
        start_time_unix_nano=began_ns,
        time_unix_nano=now_ns,
        count=counts[-1],
        sum=next(sample.value for sample in family.samples if sample.suffix == "_sum"),
        bucket_counts=[now - before for before, now in zip([0, *counts], counts, strict=False)],
        explicit_bounds=[float(sample.labels["le"]) for sample in below[:-1]],
        min=float("nan"),
        max=float("nan"),
    )
    return otel.Histogram([point], otel.AggregationTemporality.CUMULATIVE)


def _unit(name: str) -> str:
    return "s" if "_seconds" in name else "1"


class _Complaint(logging.Handler):
    """Keeps the last line of a log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):
            self.text = record.getMessage()
