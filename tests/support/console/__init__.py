"""The web console in tests: a browser, and pictures for the documentation."""
