"""In the training process: link to the guard, page, running and interrupting the user's code."""
