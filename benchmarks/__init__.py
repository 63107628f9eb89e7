"""What the launchers cost: `python -m benchmarks`, results in benchmarks/RESULTS.md."""
