"""The process beside the trainer that writes its arena out."""
