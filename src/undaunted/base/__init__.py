"""Clock, ids, text and operating-system helpers. Imports nothing above it, and never torch."""
