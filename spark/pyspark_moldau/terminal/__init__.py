"""The display of a running query: a table in the terminal, a picture at its end."""
