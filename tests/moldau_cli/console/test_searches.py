"""Goal: each search of the message browser finds what it says, wherever offsets have no record.

Method: logs of a few offsets with holes, every kind of start, and a reader that gives them in small pieces; what is
found is compared with the whole log.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from moldau.cluster.metadata import TopicPartition
from moldau.protocol.errors import KafkaError
from moldau_cli.console import records
from moldau_cli.console.records import Draft, Search, browse, draft_of
from moldau_cli.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

TOPIC = "t"
Place = tuple[str, int]


class Log:
    """A log that begins at ``begin``; ``slots`` has what each offset holds: nothing, or whether the search matches."""

    def __init__(self, number: int, begin: int, slots: list[bool | None], steps: list[int]) -> None:
        self.begin, self.end = begin, begin + len(slots)
        self.records = []
        timestamp = 0
        for offset, slot in enumerate(slots, begin):
            timestamp += steps[offset % len(steps)]
            if slot is not None:
                key, value = (b"yes", b"maybe yes") if slot else (b"no", b"maybe")
                self.records.append(
                    SimpleNamespace(
                        topic=TOPIC,
                        partition=number,
                        offset=offset,
                        timestamp=timestamp,
                        key=key,
                        value=value,
                        headers=(),
                    )
                )


class Reader:
    """A consumer of these logs that reads at most ``step`` offsets of a partition in a poll."""

    def __init__(self, logs: Mapping[int, Log], step: int, config: Mapping[str, str]) -> None:
        self.logs, self.step, self.config = logs, step, config
        self.positions: dict[Place, int] = {}

    async def __aenter__(self) -> Reader:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def beginning_offsets(self, places: Iterable[Place]) -> dict[TopicPartition, int]:
        return {TopicPartition(*place): self.logs[place[1]].begin for place in places}

    async def end_offsets(self, places: Iterable[Place]) -> dict[TopicPartition, int]:
        return {TopicPartition(*place): self.logs[place[1]].end for place in places}

    async def offsets_for_times(self, asked: Mapping[Place, int]) -> dict[TopicPartition, tuple[int, int]]:
        found = {}
        for place, when in asked.items():
            later = [each for each in self.logs[place[1]].records if each.timestamp >= when]
            found[TopicPartition(*place)] = (later[0].offset, later[0].timestamp) if later else (-1, -1)
        return found

    def assign(self, places: Iterable[Place]) -> None:
        self.positions = dict.fromkeys(places, -1)

    def seek(self, place: Place, offset: int) -> None:
        log = self.logs[place[1]]
        assert log.begin <= offset <= log.end, "a consumer would go to the beginning of the log"
        self.positions[place] = offset

    def position_nowait(self, place: Place) -> int | None:
        return self.positions[place]

    async def poll(self, _: int) -> list[Any]:
        await trio.lowlevel.checkpoint()
        batches = []
        for place, at in self.positions.items():
            log = self.logs[place[1]]
            self.positions[place] = min(log.end, at + self.step)
            read = [each for each in log.records if at <= each.offset < self.positions[place]]
            batches.append(SimpleNamespace(with_partition=lambda read=read: iter(read)))
        return batches


def found(logs: Mapping[int, Log], search: Search, step: int, leaderless: int = 0) -> dict[str, Any]:
    """Returns the answer of the page; the topic has ``leaderless`` more partitions."""
    parts = [SimpleNamespace(partition=number, leader=0) for number in logs]
    parts += [SimpleNamespace(partition=len(logs) + number, leader=-1) for number in range(leaderless)]
    level = "read_committed" if search.committed_only else "read_uncommitted"

    def reader(config: Mapping[str, str], environment: object) -> Reader:
        assert config["isolation.level"] == level
        return Reader(logs, step, config)

    async def describe_topics(_: object) -> dict[str, object]:
        return {TOPIC: SimpleNamespace(partitions=parts)}

    identity: Any = SimpleNamespace(
        admin=SimpleNamespace(describe_topics=describe_topics), settings={}, environment=None
    )
    with patch("moldau.Consumer", reader):
        return trio.run(browse, identity, search)


def wanted(logs: Mapping[int, Log], search: Search) -> list[Any]:
    """Returns all records in the range of the search that match it, in the order of the page."""
    chosen = [logs[search.partition]] if search.partition is not None else list(logs.values())
    inside = {
        "offset": lambda each: each.offset >= search.value,
        "before": lambda each: each.offset < search.value,
        "time": lambda each: each.timestamp >= search.value,
    }.get(search.origin, lambda each: True)
    matching = [
        each
        for log in chosen
        for each in log.records
        if inside(each) and search.key in each.key.decode() and search.contains in each.value.decode()
    ]
    return sorted(matching, key=lambda each: (each.timestamp, each.partition, each.offset))


SLOTS = st.lists(st.sampled_from([None, None, True, True, False]), max_size=40)


@given(
    slots=st.tuples(SLOTS, SLOTS),
    begins=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    steps=st.lists(st.integers(0, 3), min_size=1, max_size=5),
    step=st.integers(1, 5),
    origin=st.sampled_from(["tail", "start", "offset", "time", "before"]),
    value=st.integers(0, 45),
    limit=st.integers(1, 6),
    partition=st.sampled_from([None, 0, 1]),
    words=st.sampled_from(
        [{}, {"key": "yes"}, {"contains": "yes"}, {"contains": "maybe"}, {"key": "no", "contains": "yes"}]
    ),
    committed_only=st.booleans(),
    leaderless=st.integers(0, 12),
)
def test_a_search_finds_what_the_whole_log_has(
    slots, begins, steps, step, origin, value, limit, partition, words, committed_only, leaderless
):
    """The last ones in front of an end, or the first ones from a start on; a key and a value must both match."""
    logs = {number: Log(number, begins[number], slots[number], steps) for number in (0, 1)}
    if origin in ("offset", "before") and partition is None:
        partition = 1
    search = Search(topic=TOPIC, partition=partition, origin=origin, value=value, limit=limit, **words)
    search = replace(search, committed_only=committed_only)
    with patch.object(records, "RECORDS_MAX", 6):  # twice as many are kept while a search goes on
        answer = found(logs, search, step, leaderless)
    shown = [(each["partition"], each["offset"]) for each in answer["records"]]
    whole = [(each.partition, each.offset) for each in wanted(logs, search)]
    numbers = [0, 1] if partition is None else [partition]
    assert answer["partitions"] == {str(number): [logs[number].begin, logs[number].end] for number in numbers}
    absent = ", ".join(map(str, range(2, 2 + min(leaderless, 10)))) + f" and {leaderless - 10} more" * (leaderless > 10)
    is_whole = partition is not None or not leaderless
    assert answer["stopped"] == ("" if is_whole else f"left out without a leader: partition {absent}")
    if search.is_backward:
        assert shown == whole[-limit:]
        return
    # From a start on, partitions are read side by side: of each, the first ones are shown.
    assert len(shown) == min(limit, len(whole))
    for number in numbers:
        own = [place for place in shown if place[0] == number]
        assert own == [place for place in whole if place[0] == number][: len(own)]
    assert shown == [place for place in whole if place in shown], "oldest first"


@given(
    slots=SLOTS,
    step=st.integers(1, 5),
    origin=st.sampled_from(["tail", "before", "start"]),
    limit=st.integers(1, 30),
    records_max=st.integers(8, 40),
    bytes_max=st.integers(100, 400),
)
def test_a_search_that_stops_shows_the_next_ones(slots, step, origin, limit, records_max, bytes_max):
    """It says that it stopped, has read hardly more than its bounds, and leaves nothing out between what it shows."""
    log = Log(0, 3, slots, [1])
    search = Search(topic=TOPIC, partition=0, origin=origin, value=log.end, limit=limit)
    bounds = {"SCANNED_RECORDS_MAX": records_max, "SCANNED_BYTES_MAX": bytes_max}
    with patch.multiple(records, **bounds):
        answer = found({0: log}, search, step)
    shown = [each["offset"] for each in answer["records"]]
    whole = [each.offset for each in wanted({0: log}, search)]
    assert shown == (whole[len(whole) - len(shown) :] if search.is_backward else whole[: len(shown)])
    if answer["stopped"]:
        assert answer["stopped"].startswith(f"stopped after {counted(answer['scanned'], 'record')}; narrow")
        assert shown or not whole
    else:
        assert len(shown) == min(limit, len(whole))
    # A backward step may be of the first few offsets, and is read to its end.
    assert answer["scanned"] <= min(records_max, bytes_max // 7) + step + records.FIRST_OFFSETS


@pytest.mark.parametrize("partition", [-1, 2, 99])
def test_a_partition_that_does_not_exist_is_refused(partition):
    logs = {number: Log(number, 0, [True], [1]) for number in (0, 1)}
    with pytest.raises(ValueError, match=rf"^topic t has partitions 0 to 1, not {partition}$"):
        found(logs, Search(topic=TOPIC, partition=partition), 1)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"origin": "end"}, "unknown start 'end'; known are tail, start, offset, time, before"),
        ({"limit": 0}, "the number of records must be 1 to 200, not 0"),
        ({"limit": 201}, "the number of records must be 1 to 200, not 201"),
        ({"origin": "offset"}, "an offset belongs to one partition: choose the partition"),
        ({"origin": "before"}, "an offset belongs to one partition: choose the partition"),
        ({"origin": "time", "value": -1}, "an offset or time is not negative"),
    ],
)
def test_a_search_that_cannot_be_is_refused(wrong, text):
    with pytest.raises(ValueError, match=f"^{text}$"):
        Search(topic=TOPIC, **wrong)
    for right in ({"limit": 1}, {"limit": 200}, {"origin": "time", "value": 0}, {"origin": "offset", "partition": 0}):
        assert Search(topic=TOPIC, **right)


def test_a_search_that_takes_long_says_so():
    """A leader that stopped answering: what was found until then is shown, and why there is no more."""
    log = Log(0, 0, [True] * 20, [1])

    async def poll(reader, _):
        if reader.positions[TOPIC, 0] >= 18:
            await trio.sleep_forever()
        return await read(reader, _)

    read = Reader.poll
    with (
        patch.object(Reader, "poll", poll),
        patch.object(trio, "run", partial(trio.run, clock=MockClock(autojump_threshold=0))),
    ):
        answer = found({0: log}, Search(topic=TOPIC, partition=0, origin="start", limit=30), 6)
    assert [each["offset"] for each in answer["records"]] == list(range(18))
    assert answer["stopped"] == "stopped after 8 s and 18 records; narrow the search"


def test_a_record_that_is_gone_costs_one_poll():
    """A page of a compacted topic would else read to the end of the log for a link to a record that is gone."""
    log = Log(0, 0, [True, None, *[True] * 20], [1])
    polls = []

    class Page(Reader):
        async def poll(self, _: int, *, max_records: int) -> list[Any]:
            polls.append(self.positions[TOPIC, 0])
            return await super().poll(_)

    async def describe_topics(_: object) -> dict[str, object]:
        return {TOPIC: SimpleNamespace(partitions=[SimpleNamespace(partition=0, leader=0)])}

    identity: Any = SimpleNamespace(
        admin=SimpleNamespace(describe_topics=describe_topics), settings={}, environment=None
    )
    with patch("moldau.Consumer", lambda config, environment: Page({0: log}, 2, config)):
        with pytest.raises(LookupError, match="t-0 has no record at offset 1; it was deleted"):
            trio.run(records.whole_record, identity, TOPIC, 0, 1)
        assert polls == [1]
        assert trio.run(records.whole_record, identity, TOPIC, 0, 2)["offset"] == 2


def test_a_partition_that_the_topic_lacks_is_refused_at_once():
    """The user of a console does not wait for it, as a producer does."""

    async def describe_topics(names):
        return {name: SimpleNamespace(partitions=range(2)) for name in names}

    identity = SimpleNamespace(admin=SimpleNamespace(describe_topics=describe_topics), settings={}, environment=None)
    with pytest.raises(KafkaError, match="topic t has partitions 0 to 1, not 2"):
        trio.run(records.produce, identity, draft_of({**FORM, "partition": 2}))


FORM = {"topic": "t", "key": "k", "value": "v", "partition": 2, "headers": [["h", "x"], ["h", ""]]}


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ({}, {}),
        ({"key": None, "value": None}, {"key": None, "value": None}),
        ({"key": "", "value": ""}, {"key": b"", "value": b""}),
        ({"key": "00ff", "key_form": "hex"}, {"key": b"\0\xff"}),
        ({"value": '{"a": 1}', "value_form": "json"}, {"value": b'{"a": 1}'}),
        ({"partition": None}, {"partition": None}),
        ({"partition": 0}, {"partition": 0}),
        ({"headers": []}, {"headers": ()}),
    ],
)
def test_a_form_becomes_its_record(changed, wanted):
    draft = draft_of({**FORM, **changed})
    usual = {"topic": "t", "key": b"k", "value": b"v", "partition": 2, "headers": (("h", b"x"), ("h", b""))}
    assert asdict(draft) == {**usual, **wanted}
    assert draft_of({"topic": "t"}) == Draft(topic="t", key=None, value=None, partition=None, headers=())


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        *[({"topic": wrong}, "topic: expected a topic's name") for wrong in (None, "", 1, ["t"])],
        *[({"partition": wrong}, "partition: expected a number") for wrong in (-1, "2", 1.0, True, [1])],
        *[
            ({"headers": wrong}, "headers: expected a list of at most 50 pairs")
            for wrong in ("x", {}, [["h", "x"]] * 51)
        ],
        *[
            ({"headers": [wrong]}, "headers: expected pairs of name")
            for wrong in ("hx", ["h"], ["h", "x", "y"], ["h", 1])
        ],
        *[({name: wrong}, f"{name}: expected text or null") for name in ("key", "value") for wrong in (1, ["k"], {})],
        *[
            ({f"{name}_form": wrong}, f"{name}: expected text")
            for name in ("key", "value")
            for wrong in (None, 1, ["hex"])
        ],
        *[({f"{name}_form": "xml"}, f"{name}: unknown form 'xml'") for name in ("key", "value")],
        *[({f"{name}_form": "json"}, f"{name}: not JSON") for name in ("key", "value")],
    ],
)
def test_a_wrong_form_names_its_field(changed, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        draft_of({**FORM, **changed})
