"""Between torch distributed checkpoint and our files."""
