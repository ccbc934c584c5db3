"""A shop's worst day, in one finite run on the embedded store: `python -m holdfast.demo`."""
