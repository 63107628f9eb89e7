"""The present work of each rank: shared-memory pages, sections and the timeout engine."""
