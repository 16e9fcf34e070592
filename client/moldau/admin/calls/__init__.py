"""The calls of the admin client, one module for each subject."""
