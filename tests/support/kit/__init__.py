"""Values and scripts for tests of the kit."""
