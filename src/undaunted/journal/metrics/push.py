"""Sends metrics and spans to a collector of OpenTelemetry every 15 s, from a separate thread."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from undaunted.base.text import one_line
from undaunted.journal.metrics.otlp import metrics_url, spans_url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from undaunted.journal.metrics.exposition import Family
    from undaunted.journal.metrics.spans import JobSpan

EVERY_S = 15.0
SEND_S = 5.0
_LAST_S = 1.0
_SPANS_S = 2.0  # their exporter has one limit for all, also for the last ones
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
        spans: Callable[[], list[JobSpan]] | None = None,
        trace: str = "",
        every_s: float = EVERY_S,
        send_s: float = SEND_S,
    ) -> None:
        """Start the thread.

        Args:
            endpoint: URL of the collector, or ``env``; see `metrics_url`.
            read: returns the metrics as they are now; called in the thread.
            about: what they are about: attributes of the resource.
            say: told the first time that sending fails, in the thread.
            spans: returns those that have ended since the last time, likewise; None = none are
                sent.
            trace: name of the trace of these spans; launchers of one job give the same.
            every_s: seconds from one to the next.
            send_s: longest that one may take, in seconds.
        """
        self._senders: list[_Sender] = [_Metrics(endpoint, read, about, send_s)]
        if spans is not None:
            self._senders.append(_Spans(endpoint, spans, about, trace, send_s))
        self._say = say
        self._every_s = every_s
        self._send_s = send_s
        self._stop = threading.Event()
        self._complaint = _Complaint()
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
        # Exporters tell a logger about each failure, and we tell the user once.
        logger = logging.getLogger(_LOGGER)
        logger.addHandler(self._complaint)
        logger.propagate = False
        for sender in self._senders:
            with contextlib.suppress(Exception):  # imports now: at the end there is no time
                sender.open()
        ending = False
        while not ending:
            ending = self._stop.wait(self._every_s)
            for sender in self._senders:
                if not (ending and sender.problem):
                    self._send(sender, min(self._send_s, _LAST_S) if ending else self._send_s)
        logger.removeHandler(self._complaint)
        for sender in self._senders:
            with contextlib.suppress(Exception):
                sender.close()

    def _send(self, sender: _Sender, timeout_s: float) -> None:
        self._complaint.text = ""
        try:
            taken = sender.send(timeout_s)
            sender.problem = "" if taken else one_line(self._complaint.text or "it was not taken")
        except Exception as error:  # noqa: BLE001 - whatever it is, the job goes on
            sender.problem = one_line(f"{type(error).__name__}: {error}")
        if sender.problem and not sender.said:
            sender.said = True
            place = sender.place or "the endpoint in OTEL_EXPORTER_OTLP_ENDPOINT"
            with contextlib.suppress(Exception):
                self._say(
                    f"{sender.name} could not be sent to {place}: {sender.problem}; the job goes "
                    f"on, and the next ones are sent every {self._every_s:g} s"
                )


class _Sender:
    """Sends one kind of things.

    Attributes:
        name: of the kind.
        place: URL, None = as the environment says.
        problem: why the last ones could not be sent, "" = they were.
        said: somebody was told of a problem.
    """

    name = ""

    def __init__(self, place: str | None, about: Mapping[str, str]) -> None:
        self.place = place
        self.problem = ""
        self.said = False
        self._about = dict(about)
        self._exporter: Any = None

    def open(self) -> Any:
        """Return the exporter; imports what it needs."""
        if self._exporter is None:
            self._exporter = self._open()
        return self._exporter

    def close(self) -> None:
        """Give back what the exporter has."""
        if self._exporter is not None:
            self._exporter.shutdown()

    def send(self, timeout_s: float) -> bool:
        """Send what there is now; False if it was not taken."""
        raise NotImplementedError

    def _open(self) -> Any:
        raise NotImplementedError


class _Metrics(_Sender):
    name = "metrics"

    def __init__(
        self,
        endpoint: str,
        read: Callable[[], list[Family]],
        about: Mapping[str, str],
        send_s: float,
    ) -> None:
        super().__init__(metrics_url(endpoint), about)
        self._read = read
        self._send_s = send_s
        self._began_ns = time.time_ns()

    def _open(self) -> Any:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        return OTLPMetricExporter(endpoint=self.place, timeout=self._send_s)

    def send(self, timeout_s: float) -> bool:
        exporter = self.open()
        from opentelemetry.sdk.metrics.export import MetricExportResult

        data = metrics_data(self._read(), self._about, self._began_ns, time.time_ns())
        result = exporter.export(data, timeout_millis=timeout_s * 1000)
        return result is MetricExportResult.SUCCESS


class _Spans(_Sender):
    name = "spans"

    def __init__(
        self,
        endpoint: str,
        read: Callable[[], list[JobSpan]],
        about: Mapping[str, str],
        trace: str,
        send_s: float,
    ) -> None:
        super().__init__(spans_url(endpoint), about)
        self._read = read
        self._trace = trace
        self._send_s = send_s

    def _open(self) -> Any:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter(endpoint=self.place, timeout=min(self._send_s, _SPANS_S))

    def send(self, timeout_s: float) -> bool:  # noqa: ARG002 - see _SPANS_S
        exporter = self.open()
        from opentelemetry.sdk.trace.export import SpanExportResult

        found = span_data(self._read(), self._about, self._trace)
        return not found or exporter.export(found) is SpanExportResult.SUCCESS


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


def span_data(spans: Sequence[JobSpan], about: Mapping[str, str], trace: str) -> list[Any]:
    """Return spans as OpenTelemetry has them.

    Their numbers follow from names, so that launchers of one job meet in one trace, and a span may
    name one around it that is sent later.

    Args:
        spans: that have ended.
        about: attributes of the resource.
        trace: name of their trace.
    """
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

    resource = Resource.create({"service.name": "undaunted", **about})
    scope = InstrumentationScope("undaunted")
    trace_id = _number(16, trace)
    whose = about.get("service.instance.id", "")

    def context(key: str) -> SpanContext:
        number = _number(8, f"{trace}\n{whose}\n{key}")
        return SpanContext(trace_id, number, is_remote=False, trace_flags=TraceFlags(1))

    return [
        ReadableSpan(
            name=f"undaunted.{span.name.replace(' ', '_').replace('-', '')}",
            context=context(span.key),
            parent=context(span.parent) if span.parent else None,
            resource=resource,
            attributes={f"undaunted.{name}": value for name, value in span.about.items()},
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
            start_time=span.began_ns,
            end_time=span.ended_ns,
            instrumentation_scope=scope,
        )
        for span in spans
    ]


def _number(size: int, text: str) -> int:
    """Return a number of as many bytes that follows from a text; never 0."""
    digest = hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=size).digest()
    return int.from_bytes(digest) or 1


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
