"""Metrics and spans of a run for Prometheus and OpenTelemetry."""
