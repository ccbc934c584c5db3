"""What a wire costs: the server beside a bare endpoint, and beside the library."""
