"""Real servers for tests and benchmarks, started on free loopback ports, without root or Docker."""
