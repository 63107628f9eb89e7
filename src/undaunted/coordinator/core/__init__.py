"""Pure state machines: the job policy, the leader that serves it, a node's follower."""
