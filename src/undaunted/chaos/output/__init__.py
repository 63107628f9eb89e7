"""Verdicts as text for a terminal, JSON, JUnit XML and a page."""
