"""See `undaunted.base.name_server`."""

from undaunted.base.name_server import asked_again_soon

__all__ = ["asked_again_soon"]
