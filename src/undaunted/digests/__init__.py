"""The state of each rank, step by step: taken in ranks, compared by ``undaunted chaos``."""
