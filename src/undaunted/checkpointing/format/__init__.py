"""What is in a checkpoint: names, manifest, checksums, frames. No file is touched here."""
