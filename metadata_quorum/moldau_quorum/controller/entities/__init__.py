"""Decisions about configurations, client quotas, SCRAM credentials and access control entries."""
