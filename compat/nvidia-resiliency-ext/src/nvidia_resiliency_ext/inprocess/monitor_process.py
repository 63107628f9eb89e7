"""Empty: what watches a rank from outside is its guard, `undaunted.inprocess.guard`."""
