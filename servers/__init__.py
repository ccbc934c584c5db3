"""Real servers for tests and benchmarks, started on free loopback ports, without root or Docker."""

STORES = ["memory", "sqlite", "postgres", "redis", "redis-cluster", "mongo"]
"""What the suites run over."""
SHARED = ["sqlite", "postgres", "redis", "mongo"]
"""One of each kind that several processes can open at once."""
