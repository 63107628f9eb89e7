"""The register alone: random runs of its members, claimants and writers."""
