"""Goal: a machine loses power just after it has shortened a file, or a given number of changes later.

Method: one program on a virtual machine that writes, truncates and goes on, until it is stopped.
"""

from __future__ import annotations

import pytest
import trio

from moldau.runtime.ports.environment import OpenMode
from moldau_jepsen.world.world import run_world


def changes_until_the_crash(count):
    """Returns what the program had done when the machine lost power."""
    done = []

    async def program(environment):
        environment.disk.make_directories("/data")
        file = environment.disk.open("/data/log", OpenMode.WRITE)
        for name, change in (
            ("write", lambda: file.append([b"0123456789"])),
            ("same size", lambda: file.truncate(10)),
            ("truncate", lambda: file.truncate(4)),
            ("sync", file.sync),
            ("append", lambda: file.append([b"x"])),
        ):
            done.append(name)
            change()
            await trio.sleep(1)

    async def main(world):
        node = world.node("broker-1")
        node.start(program)
        node.crash_after_truncation(count, node.lose_power)
        await node.wait_ended()
        await trio.sleep(1)

    run_world(main, 1)
    return done


@pytest.mark.parametrize(
    ("count", "last"), [(0, "truncate"), (1, "sync"), (2, "append"), (3, "append")], ids=["at-once", "1", "2", "never"]
)
def test_power_is_lost_after_a_truncation(count, last):
    assert changes_until_the_crash(count)[-1] == last
