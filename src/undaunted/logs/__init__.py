"""Log files: how ranks are named in them, following and appending to them."""

from __future__ import annotations


def __getattr__(name: str) -> object:
    if name in {"LogConfig", "setup_logger"}:
        raise ImportError(
            f"undaunted.logs.{name} is in nvidia_resiliency_ext.shared_utils.log_manager now, of "
            "undaunted's package nvidia-resiliency-ext"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
