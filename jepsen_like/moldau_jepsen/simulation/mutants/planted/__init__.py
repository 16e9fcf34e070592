"""The planted bugs of ``mutants``: each function returns which attributes it replaces by what.

Each is what a plausible slip in the code would do, and breaks exactly one rule.
"""

Patch = tuple[object, str, object]
"""Owner, attribute, replacement."""
