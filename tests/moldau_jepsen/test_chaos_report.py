"""Goal: the figures of a chaos report are those of the history, and the page tells verdict, faults and anomalies.

Method: a small history by hand whose figures can be worked out on paper; the page is parsed, not compared with text.
"""

from html.parser import HTMLParser

from moldau_jepsen.chaos.nemesis import FaultEvent
from moldau_jepsen.checkers import CheckOptions, check_history
from moldau_jepsen.history import Kind, Operation, Poll, Send, Status, TopicPartition
from moldau_jepsen.reports.chaos import ChaosReport, ClusterSample, chaos_page
from moldau_jepsen.reports.load import Latencies, series_of

P = TopicPartition("t", 0)


def sent(index: int, begun_ms: float, ended_ms: float, status: Status = Status.OK) -> Operation:
    return Operation(
        index=index,
        process=0,
        kind=Kind.SEND,
        status=status,
        begun_ms=begun_ms,
        ended_ms=ended_ms,
        operations=(Send(P, index, index if status is Status.OK else None),),
    )


HISTORY = [
    sent(0, 0, 10),
    sent(1, 100, 130),
    sent(2, 200, 900, Status.INFO),
    sent(3, 3000, 3100),
    Operation(
        index=4,
        process=1,
        kind=Kind.POLL,
        status=Status.OK,
        begun_ms=3000,
        ended_ms=3200,
        final=True,
        operations=(Poll(((P, ((0, 0), (3, 3))),)),),
    ),
]


def test_series_count_by_second_and_name_the_dark_stretch() -> None:
    series = series_of(HISTORY)
    assert list(series.acknowledged) == [(0, 2.0), (1, 0.0), (2, 0.0), (3, 1.0)]
    assert list(series.unavailable) == [(0.13, 3.1)]
    assert series.latency_ms == {"p50": 30, "p99": 100, "p99.9": 100, "max": 100}
    assert series_of([]).latency_ms["max"] == 0
    assert list(series_of(HISTORY, 2.0).unavailable) == [(0.13, 2.0)]
    assert list(series_of(HISTORY, 0.05).unavailable) == []


def test_percentiles_are_nearest_ranks_to_three_digits() -> None:
    latencies = Latencies()
    assert latencies.percentile(0.5) == 0
    for value in (3, 1, 4, 2):
        latencies.add(value)
    assert [latencies.percentile(share) for share in (0, 0.25, 0.5, 0.75, 1)] == [1, 1, 2, 3, 4]
    for value in (1234.5, 0.012345, 0.0):
        latencies.add(value)
    latencies.add(5678.9)
    assert [latencies.percentile(share) for share in (0, 0.25, 0.8, 1)] == [0, 0.0123, 1230, 5678.9]


class Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "rect", "line", "polygon", "polyline"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"


def test_the_page_tells_faults_and_anomalies_and_is_well_formed() -> None:
    verdict = check_history(HISTORY, CheckOptions())
    page = chaos_page(
        ChaosReport(
            title="Chaos <test>",
            verdict=verdict,
            series=series_of(HISTORY),
            faults=[FaultEvent(kind="kill", target="one", nodes=(2,), begin_ms=150, end_ms=2900, detail="a & b")],
            samples=[
                ClusterSample(at_ms=0, in_sync_min=3, leaderless=0, high_watermark_sum=0),
                ClusterSample(at_ms=3000, in_sync_min=2, leaderless=1, high_watermark_sum=4),
            ],
            duration_s=3.2,
            settings={"seed": "7"},
            deaths=["broker 3 ended by itself"],
            operations={operation.index: operation for operation in HISTORY},
        )
    )
    reader = Text()
    reader.feed(page)
    assert not reader.open
    assert "Anomalies found: int-poll-skip, lost-write, unseen" in reader.text
    assert "value 1 was acknowledged and is not in the final read" in reader.text
    assert "operation 1 of process 0, 0.100 s to 0.130 s, send ok; send 1 to t-0 at offset 1" in reader.text
    assert "a & b" in reader.text
    assert "broker 3 ended by itself" in reader.text
    assert page.count('class="lane"') == 1
    assert page.count('class="lane dark"') == 1
    assert "Smallest in-sync set" in reader.text
    assert "<test>" in reader.text
