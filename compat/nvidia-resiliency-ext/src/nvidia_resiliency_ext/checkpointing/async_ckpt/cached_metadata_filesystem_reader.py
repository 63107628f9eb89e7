# Made from names/*.yaml by `make generated`.
"""Reads checkpoints, and their metadata once."""

from __future__ import annotations

from undaunted.checkpointing.async_ckpt.cached_metadata_filesystem_reader import (
    CachedMetadataFileSystemReader as CachedMetadataFileSystemReader,
)
