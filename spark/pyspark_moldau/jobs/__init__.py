"""Pipeline jobs: queries that a TOML file describes, run by ``moldau pipeline`` or by their functions."""
