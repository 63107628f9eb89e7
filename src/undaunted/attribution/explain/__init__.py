"""`undaunted explain`: what happened in a job, who it was, why, and what next."""
