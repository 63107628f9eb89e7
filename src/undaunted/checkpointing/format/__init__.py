"""The content of a checkpoint: names, manifest, checksums, frames. No file is touched here."""
