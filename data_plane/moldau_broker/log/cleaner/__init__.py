"""Compaction: choosing a log, mapping its keys, rewriting its segments."""
