"""Client connections, and the two requests that carry records: Produce and Fetch."""
