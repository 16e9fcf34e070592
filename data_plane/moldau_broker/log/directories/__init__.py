"""Log directories: which logs they hold, their locks and checkpoints, moves between them."""
