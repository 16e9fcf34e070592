"""Goal: mypy checks for macOS every source whose types can differ from Linux, and no more than those.

Method: sources written for the purpose, and the ports, which hold the system calls.
"""

import pytest

from support.platform_files import differing_modules, is_platform_dependent, platform_files


@pytest.mark.parametrize(
    ("text", "differs"),
    [
        ("import os\n", True),
        ("    import signal\n", True),
        ("from socket import socket\n", True),
        ("from os.path import join\n", False),
        ("import sys\n\nprint(sys.argv)\n", False),
        ("import sys\n\nif sys.platform == 'darwin':\n    pass\n", True),
        ("import time\n\ntime.monotonic()\n", False),
        ("import time\n\ntime.clock_gettime(time.CLOCK_BOOTTIME)\n", True),
        ("import trio\n\ntrio.lowlevel.checkpoint()\n", False),
        ("import trio\n\ntrio.lowlevel.current_kqueue()\n", True),
        ("import trio\n\ntrio.socket.socketpair()\n", True),
        ("import oscillator\n", False),
    ],
)
def test_a_source_differs_by_what_it_imports(text, differs):
    assert is_platform_dependent(text, differing_modules()) == differs


def test_system_calls_are_checked_and_most_sources_are_not():
    found = platform_files()
    assert "client/moldau/runtime/ports/real.py" in found
    assert "client/moldau/runtime/ports/system_calls.py" in found
    assert "client/moldau/values.py" not in found
    assert not [path for path in found if path.startswith("benchmarks/")], "they are for Linux"
    assert 50 < len(found) < 200
