"""Output of the ranks: where it is written, and how the launcher shows it."""
