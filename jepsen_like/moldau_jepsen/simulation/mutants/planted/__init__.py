"""The planted bugs of whole clusters: each function returns which attributes it replaces by what.

Each is a plausible slip in the code, and breaks exactly one rule.
"""
