"""The metadata quorum: Raft, metadata records and image, and the controller that decides on them."""
