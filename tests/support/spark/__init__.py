"""A log in memory for tests of the Spark source."""
