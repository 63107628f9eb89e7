"""Code inside worker processes before, around and after the user's program."""
