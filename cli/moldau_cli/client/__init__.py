"""Access of commands to a cluster: its address, settings of clients, partial answers, and errors as one line."""
