"""From facts to findings, one file per subject. Pure."""
