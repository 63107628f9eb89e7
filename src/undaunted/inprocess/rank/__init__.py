"""In the training process: channel to the guard, the page, interrupting the user's code."""
