"""What users call on a queue: enqueue, lease, settle, topics, redrive."""
