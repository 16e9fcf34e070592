"""``moldau topics``: creates, lists, describes, alters and deletes topics."""
