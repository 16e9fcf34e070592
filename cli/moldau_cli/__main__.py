"""Runs the ``moldau`` command as ``python -m moldau_cli``."""

from moldau_cli.main import run

if __name__ == "__main__":
    run()
