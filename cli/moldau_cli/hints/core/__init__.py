"""Tables of words of other tools. All modules are pure."""
