"""Goal: a log directory that has failed is not taken for a drained one. Method: an admin client that describes it."""

from __future__ import annotations

import pytest
import trio

from moldau.admin import LogDirDescription
from moldau.protocol.errors import ErrorCode
from moldau_cli.errors import CommandError
from moldau_cli.operations.directories import drain_directory


class OneFailed:
    """Describes the directories of broker 2; a change would be an error."""

    async def describe_log_dirs(self, brokers):
        await trio.lowlevel.checkpoint()
        assert brokers == [2]
        states = {"/d1": ErrorCode.NONE, "/d2": ErrorCode.KAFKA_STORAGE_ERROR}
        return {
            2: [
                LogDirDescription(path=path, error=error, total_bytes=-1, usable_bytes=-1, partitions=())
                for path, error in states.items()
            ]
        }


def test_a_failed_directory_is_not_drained():
    """The command cordoned it, and said that it holds no replicas."""

    async def main():
        await drain_directory(OneFailed(), 2, "/d2", throttle=None, stall_s=60)

    with pytest.raises(CommandError, match=r"^/d2 of broker 2 has failed \(kafka_storage_error\), so nothing can be "):
        trio.run(main)
