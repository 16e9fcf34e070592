"""Records on the command line: what ``moldau produce`` reads and ``moldau consume`` writes."""
