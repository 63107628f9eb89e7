"""Orders of the job policy: of this node alone, or of one that several nodes share."""
