"""The phases of ``moldau demo``: produce while a leader is killed, consume, run Spark, and prove exactly once."""
