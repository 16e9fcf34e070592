"""Provides planted bugs, and the table of the rules and checkers that convict them."""
