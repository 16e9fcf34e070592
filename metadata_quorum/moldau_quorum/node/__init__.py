"""A controller process: its server, the active controller, quorum administration."""
