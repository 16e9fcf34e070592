"""What the file of a job says, and the checks of its cluster before Spark starts."""
