"""Follows the jobs of a Slurm cluster and has an attribution service look at their logs."""
