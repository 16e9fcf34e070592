"""Content of a log's file, line by line, for ``moldau log dump FILE`` (like Kafka's dump-log tool).

The name of the file gives its kind. Every line except the headings is one entry of the file. A damaged file is shown up
to the damage, and the last line gives the first bad byte: it begins with ``BAD_BYTE``. Indexes are compared with the
log file beside them, if it exists: an entry that points to no batch is damage, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.records import (
    BATCH_HEADER_BYTES,
    BatchHeader,
    ControlRecordType,
    CorruptRecordError,
    Record,
    control_record_type,
    decode_records,
    parse_end_txn_marker,
)
from moldau.runtime.ports.environment import OpenMode
from moldau_broker.log.errors import CorruptLogFileError
from moldau_broker.log.files.batches import BatchReader, batch_problem, plausible, read_header
from moldau_broker.log.files.checkpoint import (
    decode_clean_shutdown,
    decode_epochs,
    decode_meta_properties,
    decode_offsets,
    decode_partition_metadata,
    read_file,
    uuid_to_text,
)
from moldau_broker.log.files.index import OffsetIndex, TimeIndex
from moldau_broker.log.files.names import (
    CLEAN_SHUTDOWN,
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    INDEX_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    LOCAL_START_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    LOG_SUFFIX,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    parse_segment_file,
    segment_file,
)
from moldau_broker.log.files.transaction_index import ENTRY as TRANSACTION_ENTRY
from moldau_broker.log.producers.producer_state import decode_snapshot
from moldau_broker.log.remote.local_start import decode_local_start
from moldau_broker.log.values import NO_PRODUCER_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moldau.runtime.ports.environment import Disk, File
    from moldau_broker.log.files.names import SegmentFileName

BAD_BYTE = "first bad byte: "
"""Beginning of the line that gives the place and kind of damage."""

_OFFSET_CHECKPOINTS = (
    RECOVERY_POINT_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    CLEANER_CHECKPOINT,
)


def dump_file(disk: Disk, path: str, *, print_records: bool = False) -> Iterator[str]:
    """Yields lines that describe a file; ``print_records`` adds keys and values of a ``.log`` file's records.

    Raises:
        ValueError: The file is of no known kind.
        OSError: The file could not be read.
    """
    name = path.rpartition("/")[2]
    parsed = parse_segment_file(name)
    if parsed is None and name not in _SMALL_FILES and name not in _OFFSET_CHECKPOINTS:
        raise ValueError(
            f"{name} is none of the files of a log: segments (.log, .index, .timeindex, .txnindex, .snapshot), "
            f"{', '.join((*_SMALL_FILES, *_OFFSET_CHECKPOINTS))}"
        )
    yield f"Dumping {path}"
    try:
        if parsed is not None:
            yield from _SEGMENT_FILES[parsed.kind](disk, path, parsed, print_records)
        elif name in _OFFSET_CHECKPOINTS:
            yield from _dump_offsets(disk, path)
        else:
            yield from _SMALL_FILES[name](disk, path)
    except CorruptLogFileError as error:
        yield f"{BAD_BYTE}{error.position} of {error.path}: {error.reason}"


# Segments


def _dump_log(disk: Disk, path: str, name: SegmentFileName, print_records: bool) -> Iterator[str]:
    yield f"Log starting offset: {name.base_offset}"
    file = disk.open(path, OpenMode.READ)
    try:
        reader = BatchReader(file, 0, file.size)
        next_offset, epoch = name.base_offset, -1
        for batch in reader:
            header = batch.header
            problem = batch_problem(header, batch.data)
            yield _batch_line(header, batch.position, valid=problem is None)
            if problem is not None:
                raise CorruptLogFileError(path, batch.position, problem)
            if header.base_offset < next_offset:
                reason = f"base offset {header.base_offset} after {next_offset - 1}"
                raise CorruptLogFileError(path, batch.position, reason)
            if header.partition_leader_epoch < epoch:
                reason = f"leader epoch {header.partition_leader_epoch} after {epoch}"
                raise CorruptLogFileError(path, batch.position + 12, reason)
            next_offset, epoch = header.next_offset, header.partition_leader_epoch
            try:
                records = decode_records(batch.data, 0, header)
                if print_records or header.is_control:
                    for index, record in enumerate(records):
                        yield _record_line(header, index, record)
            except CorruptRecordError as error:
                raise CorruptLogFileError(path, batch.position + BATCH_HEADER_BYTES, str(error)) from error
        if reader.problem is not None:
            raise CorruptLogFileError(path, reader.position, reader.problem)
    finally:
        file.close()


def _batch_line(header: BatchHeader, position: int, *, valid: bool) -> str:
    horizon = header.delete_horizon_ms
    return (
        f"baseOffset: {header.base_offset} lastOffset: {header.last_offset} count: {header.record_count} "
        f"baseSequence: {header.base_sequence} lastSequence: {header.last_sequence} "
        f"producerId: {header.producer_id} producerEpoch: {header.producer_epoch} "
        f"partitionLeaderEpoch: {header.partition_leader_epoch} isTransactional: {_flag(header.is_transactional)} "
        f"isControl: {_flag(header.is_control)} "
        f"deleteHorizonMs: {'OptionalLong.empty' if horizon is None else f'OptionalLong[{horizon}]'} "
        f"position: {position} {_time_kind(header)}: {header.max_timestamp} size: {header.size_bytes} "
        f"magic: {header.magic} compresscodec: {_codec_name(header)} crc: {header.crc} isvalid: {_flag(valid)}"
    )


def _record_line(header: BatchHeader, index: int, record: Record) -> str:
    key, value = record.key, record.value
    sequence = header.base_sequence + index if header.base_sequence >= 0 else -1
    line = (
        f"| offset: {record.offset} {_time_kind(header)}: {record.timestamp} keySize: {_size(key)} "
        f"valueSize: {_size(value)} sequence: {sequence} headerKeys: [{','.join(name for name, _ in record.headers)}]"
    )
    if header.is_control:
        kind = control_record_type(record)
        line += f" endTxnMarker: {kind.name if kind is not None else 'UNKNOWN'}"
        if kind in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
            line += f" coordinatorEpoch: {parse_end_txn_marker(record).coordinator_epoch}"
        return line
    if key is not None:
        line += f" key: {key.decode('utf-8', 'backslashreplace')}"
    if value is not None:
        line += f" payload: {value.decode('utf-8', 'backslashreplace')}"
    return line


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _size(value: bytes | None) -> int:
    return -1 if value is None else len(value)


def _time_kind(header: BatchHeader) -> str:
    return "LogAppendTime" if header.timestamp_type else "CreateTime"


def _codec_name(header: BatchHeader) -> str:
    try:
        return header.compression.config_name
    except CorruptRecordError:
        return "unknown"


def _log_beside(disk: Disk, path: str, name: SegmentFileName) -> File | None:
    directory = path.rpartition("/")[0]
    log = f"{directory}/{segment_file(name.base_offset, LOG_SUFFIX)}{name.state}"
    return disk.open(log, OpenMode.READ) if disk.exists(log) else None


def _header_at(log: File, position: int) -> BatchHeader | None:
    header = read_header(log, position) if 0 <= position < log.size else None
    return header if header is not None and plausible(header) else None


def _dump_offset_index(disk: Disk, path: str, name: SegmentFileName, print_records: bool) -> Iterator[str]:
    layout, data = OffsetIndex.LAYOUT, read_file(disk, path)
    log = _log_beside(disk, path, name)
    last = (-1, -1)
    try:
        for byte in range(0, len(data) - len(data) % layout.size, layout.size):
            relative, position = layout.unpack_from(data, byte)
            if (relative, position) == (0, 0) and byte > 0:
                break  # space that Kafka preallocates; nothing but zeros may follow
            yield f"offset: {name.base_offset + relative} position: {position}"
            if relative <= last[0] or position <= last[1]:
                raise CorruptLogFileError(path, byte, f"entry {relative}, {position} does not rise above {last}")
            if log is not None:
                header = _header_at(log, position)
                if header is None or not header.base_offset <= name.base_offset + relative <= header.last_offset:
                    raise CorruptLogFileError(path, byte, f"offset {name.base_offset + relative} is not there")
            last = (relative, position)
        _require_whole(path, data, layout.size)
    finally:
        if log is not None:
            log.close()


def _dump_time_index(disk: Disk, path: str, name: SegmentFileName, print_records: bool) -> Iterator[str]:
    layout, data = TimeIndex.LAYOUT, read_file(disk, path)
    last = (-1, -1)
    largest = _largest_timestamps(disk, path, name)
    for byte in range(0, len(data) - len(data) % layout.size, layout.size):
        timestamp, relative = layout.unpack_from(data, byte)
        if (timestamp, relative) == (0, 0) and byte > 0:
            break
        offset = name.base_offset + relative
        yield f"timestamp: {timestamp} offset: {offset}"
        if timestamp <= last[0] or relative <= last[1]:
            raise CorruptLogFileError(path, byte, f"entry {timestamp}, {relative} does not rise above {last}")
        if largest is not None and largest.get(offset) != timestamp:
            raise CorruptLogFileError(path, byte, f"no batch ends at offset {offset} with timestamp {timestamp}")
        last = (timestamp, relative)
    _require_whole(path, data, layout.size)


def _largest_timestamps(disk: Disk, path: str, name: SegmentFileName) -> dict[int, int] | None:
    log = _log_beside(disk, path, name)
    if log is None:
        return None
    try:
        reader = BatchReader(log, 0, log.size)
        return {batch.header.last_offset: batch.header.max_timestamp for batch in reader}
    finally:
        log.close()


def _dump_transaction_index(disk: Disk, path: str, name: SegmentFileName, print_records: bool) -> Iterator[str]:
    data = read_file(disk, path)
    size = TRANSACTION_ENTRY.size
    last_marker = -1
    for byte in range(0, len(data) - len(data) % size, size):
        version, producer, first, last, stable = TRANSACTION_ENTRY.unpack_from(data, byte)
        yield (
            f"version: {version} producerId: {producer} firstOffset: {first} lastOffset: {last} "
            f"lastStableOffset: {stable}"
        )
        if version != 0:
            raise CorruptLogFileError(path, byte, f"version {version}, expected 0")
        if not 0 <= first <= last or last < name.base_offset or last <= last_marker:
            raise CorruptLogFileError(path, byte + 2, f"offsets {first} to {last} do not fit the segment or its order")
        last_marker = last
    _require_whole(path, data, size)


def _require_whole(path: str, data: bytes, size: int) -> None:
    if len(data) % size:
        raise CorruptLogFileError(path, len(data) - len(data) % size, "the last entry is cut")


def _dump_snapshot(disk: Disk, path: str, name: SegmentFileName, print_records: bool) -> Iterator[str]:
    for entry in decode_snapshot(path, read_file(disk, path)):
        if entry.producer_id == NO_PRODUCER_ID:
            yield "every producer of the log is known"
            continue
        first = entry.transaction_first_offset
        line = (
            f"producerId: {entry.producer_id} producerEpoch: {entry.epoch} coordinatorEpoch: {entry.coordinator_epoch} "
            f"currentTxnFirstOffset: {first if first >= 0 else 'None'} lastTimestamp: {entry.last_timestamp_ms} "
        )
        if entry.batches:
            batch = entry.batches[-1]
            line += (
                f"firstSequence: {batch.first_sequence} lastSequence: {batch.last_sequence} "
                f"lastOffset: {batch.last_offset} offsetDelta: {batch.offset_delta} timestamp: {batch.timestamp_ms}"
            )
        yield line.rstrip()


_SEGMENT_FILES: dict[str, Callable[[Disk, str, SegmentFileName, bool], Iterator[str]]] = {
    LOG_SUFFIX: _dump_log,
    INDEX_SUFFIX: _dump_offset_index,
    TIME_INDEX_SUFFIX: _dump_time_index,
    TRANSACTION_INDEX_SUFFIX: _dump_transaction_index,
    SNAPSHOT_SUFFIX: _dump_snapshot,
}


# Small files


def _dump_offsets(disk: Disk, path: str) -> Iterator[str]:
    for key, offset in decode_offsets(path, read_file(disk, path)).items():
        yield f"topic: {key.topic} partition: {key.partition} offset: {offset}"


def _dump_epochs(disk: Disk, path: str) -> Iterator[str]:
    for entry in decode_epochs(path, read_file(disk, path)):
        yield f"epoch: {entry.leader_epoch} startOffset: {entry.start_offset}"


def _dump_local_start(disk: Disk, path: str) -> Iterator[str]:
    start = decode_local_start(path, read_file(disk, path))
    yield f"logStartOffset: {start.log_start_offset} localLogStartOffset: {start.local_log_start_offset}"
    for entry in start.leader_epochs:
        yield f"epoch: {entry.leader_epoch} startOffset: {entry.start_offset}"


def _dump_partition_metadata(disk: Disk, path: str) -> Iterator[str]:
    topic_id = decode_partition_metadata(path, read_file(disk, path))
    yield f"version: 0 topicId: {uuid_to_text(topic_id)} ({topic_id})"


def _dump_meta_properties(disk: Disk, path: str) -> Iterator[str]:
    properties = decode_meta_properties(path, read_file(disk, path))
    yield f"clusterId: {properties.cluster_id}"
    yield f"nodeId: {properties.node_id}"
    yield f"directoryId: {uuid_to_text(properties.directory_id)}"


def _dump_clean_shutdown(disk: Disk, path: str) -> Iterator[str]:
    yield f"brokerEpoch: {decode_clean_shutdown(path, read_file(disk, path))}"


_SMALL_FILES: dict[str, Callable[[Disk, str], Iterator[str]]] = {
    LEADER_EPOCH_CHECKPOINT: _dump_epochs,
    LOCAL_START_CHECKPOINT: _dump_local_start,
    PARTITION_METADATA: _dump_partition_metadata,
    META_PROPERTIES: _dump_meta_properties,
    CLEAN_SHUTDOWN: _dump_clean_shutdown,
}
