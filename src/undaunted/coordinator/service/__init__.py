"""The cores of leader and follower, run on a loop over real connections."""
