"""The group coordinator: classic consumer groups and their committed offsets."""
