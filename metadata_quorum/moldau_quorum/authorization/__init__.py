"""Authorization by ACLs, as Kafka's StandardAuthorizer does it: rules, decisions, and the check of each API. Pure."""
