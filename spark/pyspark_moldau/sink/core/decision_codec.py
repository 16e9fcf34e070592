"""How a decision is kept: as metadata of committed offsets, in parts that fit ``offset.metadata.max.bytes``.

A part is JSON. Part 0 says how many parts there are; every part carries batch and amendment number, so that a reader
recognises parts of different decisions.
"""

from __future__ import annotations

import json

from pyspark_moldau.sink.core.effects import PROTOCOL_VERSION, Decision, Entry
from pyspark_moldau.sink.core.refusals import ProtocolRefusedError

PART_BYTES_MAX = 4000
"""Below ``offset.metadata.max.bytes``, which is 4096 by default."""
PARTS_MAX = 200


def encode_decision(decision: Decision) -> list[str]:
    """Returns the parts of a decision.

    Raises:
        ProtocolRefusedError: the batch has too many partitions.
    """
    texts = [_encode_entry(entry) for entry in decision.entries]
    topic = "" if decision.topic is None else f',"o":{json.dumps(decision.topic)}'
    rest = f',"p":{json.dumps(decision.plan)}{topic}' if decision.plan else topic
    parts: list[list[str]] = [[]]
    size = 0
    for text in texts:
        if size + len(text) + 1 > PART_BYTES_MAX - 200 - len(rest) and parts[-1]:
            parts.append([])
            size = 0
        parts[-1].append(text)
        size += len(text) + 1
    if len(parts) > PARTS_MAX:
        raise ProtocolRefusedError(
            f"batch {decision.batch} has {len(texts)} partitions, more than a decision can hold; coalesce the rows "
            "into fewer partitions before the sink"
        )
    head = f'"v":{PROTOCOL_VERSION},"b":{decision.batch},"a":{decision.amendments},"t":{decision.decided_ms}{rest}'
    run = json.dumps(decision.run)
    return [f'{{{head},"n":{len(parts)},"run":{run},"e":[{",".join(part)}]}}' for part in parts]


def _encode_entry(entry: Entry | None) -> str:
    if entry is None:
        return "0"
    return json.dumps(
        [
            entry.transactional_id,
            entry.producer_id,
            entry.producer_epoch,
            entry.rows,
            f"{entry.fingerprint:x}",
        ],
        separators=(",", ":"),
    )


def parts_of(text: str) -> int:
    """Returns how many parts the decision of part 0 has."""
    return int(str(_document(text)["n"]))


def _document(text: str) -> dict[str, object]:
    document: dict[str, object] = json.loads(text)
    if document.get("v") != PROTOCOL_VERSION:
        raise ProtocolRefusedError(
            f"the last decision of this query is of version {document.get('v')} of the sink's protocol, this is "
            f"version {PROTOCOL_VERSION}; use the release that began the query"
        )
    return document


def decode_decision(parts: list[str]) -> Decision | None:
    """Returns the decision of these parts; None where they belong to different decisions (read them again)."""
    documents = [_document(part) for part in parts]
    heads = {(each["b"], each["a"], each["n"]) for each in documents}
    if len(heads) != 1 or documents[0]["n"] != len(parts):
        return None
    entries: list[Entry | None] = []
    for document in documents:
        given = document["e"]
        assert isinstance(given, list), "a part lists entries"
        entries += [_decode_entry(each) for each in given]
    return Decision(
        batch=int(str(documents[0]["b"])),
        run=str(documents[0]["run"]),
        amendments=int(str(documents[0]["a"])),
        entries=tuple(entries),
        decided_ms=int(str(documents[0].get("t", 0))),
        topic=None if (topic := documents[0].get("o")) is None else str(topic),
        plan=str(documents[0].get("p", "")),
    )


def _decode_entry(given: list[object] | int) -> Entry | None:
    if isinstance(given, int):
        return None
    transactional_id, producer_id, producer_epoch, rows, fingerprint = given
    return Entry(
        transactional_id=str(transactional_id),
        producer_id=int(str(producer_id)),
        producer_epoch=int(str(producer_epoch)),
        rows=int(str(rows)),
        fingerprint=int(str(fingerprint), 16),
    )
