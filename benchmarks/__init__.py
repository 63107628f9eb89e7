"""What the launchers cost: `python -m benchmarks`, described in docs/benchmarks.md."""
