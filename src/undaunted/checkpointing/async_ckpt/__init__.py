"""Asynchronous checkpoints under the names that users of NVRx know."""
