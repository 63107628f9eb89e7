"""What the job does: pure."""
