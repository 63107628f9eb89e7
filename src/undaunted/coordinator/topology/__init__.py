"""Where this node stands: its place in the scheduler's order, its NVLink domain, its group."""
