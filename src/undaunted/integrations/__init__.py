"""Adapters to training frameworks and schedulers, one package or module each; thin."""
