"""Reads contents that are put, piece by piece."""

from __future__ import annotations

import errno
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau.runtime.ports.environment import Disk
    from moldau.runtime.ports.objects import Content


async def read_piece(disk: Disk, name: str, content: Content, position: int, count: int) -> bytes:
    """Returns a piece of the content of the object ``name``. When the call has ended, no thread reads any more.

    Raises:
        OSError: the content could not be read, or is shorter than it said.
    """
    piece = await disk.offload(partial(content.read, position, count))
    if len(piece) != count:
        raise OSError(errno.EIO, f"the content of {name} ended after {position + len(piece)} bytes")
    return piece
