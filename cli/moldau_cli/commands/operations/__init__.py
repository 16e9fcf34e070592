"""Commands that operate a cluster as a whole."""
