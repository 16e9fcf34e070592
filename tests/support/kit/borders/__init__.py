"""Pairs of histories for each rule of the checkers: one just inside it, and one just outside."""
