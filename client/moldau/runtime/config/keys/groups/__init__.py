"""The keys of groups, on brokers and on groups themselves."""
