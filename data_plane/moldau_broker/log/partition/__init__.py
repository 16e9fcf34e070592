"""The log of one partition: segments in order, watermarks, leader epochs."""
