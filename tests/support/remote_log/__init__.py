"""Remote segments for tests of tiered storage."""
