"""The ``moldau`` command: its entry point, its commands, and the node process that ``moldau server`` runs."""
