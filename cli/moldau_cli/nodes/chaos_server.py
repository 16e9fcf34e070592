"""Runs ``moldau server`` with a disk and clocks that a test harness controls.

The command is ``python -m moldau_cli.nodes.chaos_server DIRECTORY CONFIG ...``. The node is the production one; its
disk can lose unsynced data, be full or fail, and its clocks can be wrong (``moldau_jepsen.launcher.hostile``).
``DIRECTORY`` holds the control file and the undo journal.
"""

from __future__ import annotations

import sys
from pathlib import Path

from moldau_cli.nodes.server import serve_command
from moldau_jepsen.launcher.hostile import hostile_environment

if __name__ == "__main__":
    sys.exit(serve_command(sys.argv[2:], lambda: hostile_environment(Path(sys.argv[1]))))
