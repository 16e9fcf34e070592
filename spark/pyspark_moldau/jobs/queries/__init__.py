"""The queries of a job: how they read, what they compute, where they write, and how they run."""
