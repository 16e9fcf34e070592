"""Commands that look at what happens in a cluster: offsets and the live view."""
