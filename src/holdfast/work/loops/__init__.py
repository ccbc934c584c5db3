"""The loops of a worker: each runs in threads of its own and waits for no other's round trips."""
