"""Logins: handshakes, sessions that end, credentials of SCRAM, and delegation tokens."""
