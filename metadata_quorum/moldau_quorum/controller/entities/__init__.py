"""Decisions about configurations, client quotas, SCRAM credentials, delegation tokens and ACLs."""
