"""What each rank's state was, step by step: taken in ranks, compared by ``undaunted chaos``."""
