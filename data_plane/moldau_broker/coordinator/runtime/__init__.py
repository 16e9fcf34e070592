"""Code that all coordinators share: the shell of a replicated core, its ports and its timers."""
