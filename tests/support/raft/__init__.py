"""The quorum's log engines in a seeded world: stories, campaigns, planted bugs."""
