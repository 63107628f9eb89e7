"""Whether a path is safe to write to."""

from __future__ import annotations

from undaunted.shared_utils.os_utils import validate_directory, validate_filepath

__all__ = ["validate_directory", "validate_filepath"]
