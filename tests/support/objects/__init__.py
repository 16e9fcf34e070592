"""Object stores for tests."""
