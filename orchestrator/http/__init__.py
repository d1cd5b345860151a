"""HTTP servers: listening on an address, and serving within limits."""
