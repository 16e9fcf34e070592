"""Maps groups and transactional ids to partitions of internal topics, with the hash that Kafka's clients assume."""


def java_string_hash(text: str) -> int:
    """Returns Java's ``String.hashCode``: 31-adic over UTF-16 code units, as a signed 32-bit integer."""
    data = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for index in range(0, len(data), 2):
        value = (value * 31 + (data[index] << 8 | data[index + 1])) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def partition_for(key: str, partition_count: int) -> int:
    """Returns the partition of ``__consumer_offsets`` or ``__transaction_state`` that coordinates ``key``.

    Args:
        key: group id or transactional id.
        partition_count: partitions of the internal topic, at least 1.
    """
    assert partition_count >= 1
    value = java_string_hash(key)
    return (0 if value == -0x8000_0000 else abs(value)) % partition_count
