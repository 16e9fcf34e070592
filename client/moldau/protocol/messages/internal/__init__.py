"""Keys and values of the records of internal topics, and of control records."""
