"""Chooses the kinds of runs of a campaign by the coverage of its former runs."""
