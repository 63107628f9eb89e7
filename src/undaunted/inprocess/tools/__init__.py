"""Injecting faults."""

from __future__ import annotations

from importlib import import_module


def __getattr__(name: str) -> object:
    if name == "inject_fault":
        return import_module(f"{__name__}.inject_fault")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
