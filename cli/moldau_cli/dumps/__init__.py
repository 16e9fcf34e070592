"""Comparisons of the files of a log directory with each other, for ``moldau log dump``."""
