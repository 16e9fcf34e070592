"""Code that both coordinators share: the shell of a replicated core, its ports and its timers."""
