"""Files to which processes write messages, and the log in which they are put together."""
