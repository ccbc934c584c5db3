"""Watching a connection: observers, events about dead letters, trace spans."""
