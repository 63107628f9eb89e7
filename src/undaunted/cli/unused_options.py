"""Options of torchrun and NVRx that are accepted, but have nothing to do here."""

from __future__ import annotations

from undaunted.base.durations import parse_seconds
from undaunted.cli import values
from undaunted.cli.option import Option
from undaunted.fault_tolerance.config_schema import UNUSED
from undaunted.fault_tolerance.config_values import boolean, choice, whole

UNUSED_OPTIONS: tuple[Option, ...] = (
    Option(
        "monitor-interval",
        UNUSED,
        "Nothing is polled: an exit is seen at once",
        parse_seconds,
        "TIME",
    ),
    Option(
        "event-log-handler",
        UNUSED,
        "Only null: the journal has all events",
        values.event_log_handler,
        "NAME",
        default="null",
    ),
    Option(
        "start-method",
        UNUSED,
        "See --worker-start",
        choice("spawn", "fork", "forkserver"),
        "METHOD",
    ),
    Option(
        "ft-enable-log-server",
        UNUSED,
        "Send the logs per round of all nodes to one server",
        boolean,
        "true|false",
        "switch",
        default="false",
        not_built="the log server",
    ),
    *(
        Option(name, UNUSED, f"For the log server: {text}", convert, metavar, default=default)
        for name, text, convert, metavar, default in (
            ("ft-log-server-port", "its port", values.port, "PORT", "50051"),
            ("ft-log-aggregator-count", "servers below it", values.count, "N", "0"),
            ("ft-log-leaf-max-queue-chunks", "their queues", whole(-1), "N", "-1"),
            ("ft-log-server-log-prefix", "its own log", str, "FILE", ""),
            ("ft-log-server-graceful-shutdown-timeout", "its end", parse_seconds, "TIME", "60"),
        )
    ),
)
