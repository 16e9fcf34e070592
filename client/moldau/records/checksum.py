"""CRC-32C, the checksum of record batches, computed by the extension module of the package ``crc32c``.

The package's own ``__init__`` imports a command line and ``importlib.metadata``, which took a tenth of the time that
``from moldau import Producer`` needs. So the extension module is loaded alone, if it is where the package keeps it.
"""

from __future__ import annotations

import importlib
import importlib.util
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Final, Protocol, cast

if TYPE_CHECKING:
    from moldau.values import Buffer

__all__ = ["crc32c"]


class _Checksum(Protocol):
    def __call__(self, data: Buffer, value: int = 0, /) -> int: ...


def _load() -> _Checksum:
    package = importlib.util.find_spec("crc32c")
    places = package.submodule_search_locations if package is not None else None
    found = PathFinder.find_spec("_crc32c", places) if places else None
    if found is None or found.loader is None:
        return cast("_Checksum", importlib.import_module("crc32c").crc32c)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return cast("_Checksum", module.crc32c)


crc32c: Final = _load()
"""Returns the CRC-32C of the data; ``value`` is the CRC of the bytes before it."""
