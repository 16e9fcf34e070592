"""Planted bugs of partition logs: epochs, truncation, watermarks, retention and cleaning."""
