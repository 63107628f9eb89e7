# Made from names/*.yaml by `make generated`.
"""Whether a path is safe to write to."""

from __future__ import annotations

from undaunted.shared_utils.os_utils import validate_directory as validate_directory
from undaunted.shared_utils.os_utils import validate_filepath as validate_filepath
