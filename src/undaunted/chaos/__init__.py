"""`undaunted chaos`: a user's script under planned faults; see docs/design/chaos.md."""
