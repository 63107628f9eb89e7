"""What each rank is doing now: shared-memory pages, sections and the timeout engine."""
