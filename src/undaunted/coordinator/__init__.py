"""Job-wide decisions: who takes part in a round, restart or stop."""
