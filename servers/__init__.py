"""Real servers for tests and benchmarks, started on free loopback ports, without root or Docker."""

STORES = ["memory", "sqlite", "postgres"]
"""What the suites run over."""
SHARED = [name for name in STORES if name != "memory"]
"""Those that several processes can open at once."""
