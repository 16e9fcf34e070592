"""Pure functions that choose the kind of the next run."""
