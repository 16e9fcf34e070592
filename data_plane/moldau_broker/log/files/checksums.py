"""Checksums of the small files of a log directory, written at a clean stop and compared at the next start.

Kafka's text checkpoints and aborted-transaction indexes carry no checksum: a flipped bit can turn one valid content
into another, and a wrong log start offset hides records. Batches, producer snapshots and ``local-log-start-checkpoint``
have their own checksums, and sparse indexes are compared with the batches. All other files are covered by
``.moldau-checksums``, which Kafka ignores:

    0                                        version
    1                                        number of lines that follow, without the last
    9f...c4 topic-0/leader-epoch-checkpoint  xxh3 (64 bits, hexadecimal) and path relative to the log directory
    77...01                                  xxh3 of all that precedes

After a crash it is not used, because the files have changed since; they are read without this check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xxhash import xxh3_64_hexdigest

from moldau_broker.log.errors import CorruptLogFileError
from moldau_broker.log.files.checkpoint import read_file, write_atomically
from moldau_broker.log.files.names import (
    APPLIED_METADATA,
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    TRANSACTION_INDEX_SUFFIX,
    parse_directory,
)

if TYPE_CHECKING:
    from moldau.runtime.ports.environment import Disk

CHECKSUMS = ".moldau-checksums"
_VERSION = 0
_TOP = (
    RECOVERY_POINT_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    CLEANER_CHECKPOINT,
    META_PROPERTIES,
    APPLIED_METADATA,
)
_OF_LOG = (LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA)


def covered_files(disk: Disk, directory: str) -> list[str]:
    """Returns the sorted relative paths of the files that have no checksum of their own."""
    found = [name for name in _TOP if disk.exists(f"{directory}/{name}")]
    for name in disk.list_directory(directory):
        path = f"{directory}/{name}"
        if parse_directory(name) is None or not disk.is_directory(path):
            continue
        files = disk.list_directory(path)
        found += [f"{name}/{file}" for file in files if file in _OF_LOG or file.endswith(TRANSACTION_INDEX_SUFFIX)]
    return sorted(found)


def write_checksums(disk: Disk, directory: str) -> None:
    """Writes the checksums of all covered files of a directory; durable on return.

    Raises:
        OSError: A file could not be read or written.
    """
    lines = [
        f"{xxh3_64_hexdigest(read_file(disk, f'{directory}/{name}'))} {name}" for name in covered_files(disk, directory)
    ]
    content = "".join(f"{line}\n" for line in (str(_VERSION), str(len(lines)), *lines)).encode()
    write_atomically(disk, f"{directory}/{CHECKSUMS}", content + f"{xxh3_64_hexdigest(content)}\n".encode())


def read_checksums(path: str, content: bytes) -> dict[str, str]:
    """Returns the checksums by relative path.

    Raises:
        CorruptLogFileError: The file is damaged.
    """
    body, _, end = content[:-1].rpartition(b"\n")
    body += b"\n"
    if not content.endswith(b"\n") or end != xxh3_64_hexdigest(body).encode():
        raise CorruptLogFileError(path, 0, "its own checksum does not match")
    version, count, *lines = body.decode().splitlines()
    if version != str(_VERSION) or int(count) != len(lines):
        raise CorruptLogFileError(path, 0, f"version {version} with {count} lines is unknown")
    return {name: digest for digest, _, name in (line.partition(" ") for line in lines)}


def damaged_files(disk: Disk, directory: str) -> tuple[str, ...]:
    """Returns the paths of covered files that changed or disappeared since the clean stop.

    Raises:
        OSError: A file could not be read.
        CorruptLogFileError: The checksums are damaged, so no file can be checked.
    """
    path = f"{directory}/{CHECKSUMS}"
    if not disk.exists(path):
        return ()
    damaged = []
    for name, digest in read_checksums(path, read_file(disk, path)).items():
        file = f"{directory}/{name}"
        if not disk.exists(file) or xxh3_64_hexdigest(read_file(disk, file)) != digest:
            damaged.append(file)
    return tuple(damaged)
