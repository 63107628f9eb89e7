"""Judges runs: pure functions from histories to verdicts."""
