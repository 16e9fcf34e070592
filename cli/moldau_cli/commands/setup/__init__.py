"""Commands that set up the command line itself: profiles and shell completion."""
