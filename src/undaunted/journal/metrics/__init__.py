"""What a run has to say to Prometheus and OpenTelemetry."""
