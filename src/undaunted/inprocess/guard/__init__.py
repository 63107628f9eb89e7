"""Outside of the training process: serves ranks, watches their processes, hosts the controller."""
