# Made from names/*.yaml by `make generated`.
"""Paths that are safe to write to."""

from __future__ import annotations

from undaunted.shared_utils.os_utils import validate_directory as validate_directory
from undaunted.shared_utils.os_utils import validate_filepath as validate_filepath
