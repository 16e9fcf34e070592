"""Files that ``file:`` URLs name: tokens of clients, and the keys with which brokers check them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from moldau.runtime.ports.environment import OpenMode

if TYPE_CHECKING:
    from moldau.runtime.ports.environment import Disk


def read_file_url(disk: Disk, url: str, bytes_max: int) -> bytes:
    """Returns the begin of the file that a URL names; characters of its path may be escaped.

    A relative path begins at the working directory, as those of certificates do.

    Raises:
        OSError: it cannot be read.
    """
    file = disk.open(os.path.abspath(unquote(urlsplit(url).path)), OpenMode.READ)
    try:
        return file.read(0, bytes_max)
    finally:
        file.close()
