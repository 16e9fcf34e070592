"""Answers to words that a user knows from another tool."""
