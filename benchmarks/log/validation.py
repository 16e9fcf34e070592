"""The cost of a leader's checks of one batch, by codec and size of the batch.

    python -m benchmarks.log.validation [--seconds 0.5]

Each row is one batch of 100-byte records with text of moderate redundancy, validated again and again as
``PartitionLog.stage_as_leader`` does it. ``raw`` is the size of the records before compression.
"""

from __future__ import annotations

import argparse
import time

from moldau.records import Compression, encode_batch
from moldau_broker.log.config import LogConfig
from moldau_broker.log.partition.validator import validate_batch
from moldau_broker.log.values import AppendOrigin

NOW_MS = 1_700_000_000_000
RECORD_BYTES = 100
ROWS = [
    (codec, size, compact)
    for compact in (False, True)
    for size in (16 * 1024, 128 * 1024, 960 * 1024)
    for codec in Compression
]


def make_batch(codec: Compression, raw_bytes: int) -> bytes:
    """Returns a batch of records that a codec shrinks about fourfold."""
    rows = []
    for number in range(max(1, raw_bytes // (RECORD_BYTES + 8))):
        text = f"{number * 2654435761 % 2**32:010d} flight UA{number % 4000:04d} from JFK, {number % 97} min late"
        rows.append((NOW_MS + number, b"%08d" % number, text.ljust(RECORD_BYTES - 8, ".").encode(), ()))
    return encode_batch(rows, compression=codec)


def measure(batch: bytes, config: LogConfig, seconds: float) -> float:
    """Returns the microseconds of processor time that one validation takes, the least of ten rounds."""
    buffer = memoryview(bytearray(batch))
    best = float("inf")
    for _ in range(10):
        count, began = 0, time.process_time()
        while time.process_time() - began < seconds / 10:
            validate_batch(buffer, config, AppendOrigin.CLIENT, NOW_MS)
            count += 1
        best = min(best, (time.process_time() - began) / count)
    return best * 1e6


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.5)
    seconds = parser.parse_args().seconds
    print("| cleanup.policy | codec | raw KiB | stored KiB | CPU µs a batch | raw MB/s |")
    print("|---|---|---|---|---|---|")
    for codec, size, compact in ROWS:
        batch = make_batch(codec, size)
        micros = measure(batch, LogConfig(compact=compact), seconds)
        policy = "compact" if compact else "delete"
        print(
            f"| {policy} | {codec.config_name} | {size // 1024} | {len(batch) / 1024:.1f} | {micros:.1f} "
            f"| {size / micros:.0f} |"
        )


if __name__ == "__main__":
    main()
