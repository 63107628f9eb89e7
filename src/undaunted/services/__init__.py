"""Servers beside jobs, which only read: the attribution service, and tools for assistants."""
