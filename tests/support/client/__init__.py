"""Fakes and stories for tests of the clients."""
