"""The proof kit: deterministic simulation, local clusters, chaos, workloads, checkers and reports."""
