"""The content of a job's file, and the checks of its cluster before Spark starts."""
