"""The policy of a job: pure."""
