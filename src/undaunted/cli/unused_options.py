"""Options of torchrun and NVRx that are accepted, but have nothing to do here."""

from __future__ import annotations

from undaunted.base.durations import parse_seconds
from undaunted.cli import values
from undaunted.cli.option import Option
from undaunted.fault_tolerance.config_schema import UNUSED
from undaunted.fault_tolerance.config_values import choice

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
)
