"""``moldau console``: a web console for any cluster, and fault buttons for a local one."""
