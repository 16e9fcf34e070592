"""Members of a streams group (KIP-1071) as programs: they take tasks, commit and crash."""
