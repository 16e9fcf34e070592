"""The broker's side of the quorum: session, controller client, metadata follower."""
