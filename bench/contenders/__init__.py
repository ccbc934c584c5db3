"""Who takes part: each module times one party on a fresh database."""
