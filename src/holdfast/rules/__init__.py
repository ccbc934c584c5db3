"""Every decision about a message, as pure functions: no clock, no store."""
