"""What a queue's log says: tables and a page, from one pass over an archive."""
