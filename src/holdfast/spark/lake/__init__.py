"""What the queue has done, as files that Spark reads: the archive, and what is made of it."""
