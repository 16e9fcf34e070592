"""Goal: the figures of a chaos report are those of the history, and the page shows verdict, faults and anomalies.

Method: a small history by hand whose figures can be worked out on paper; the page is parsed, not compared with text.
"""

from dataclasses import replace
from html.parser import HTMLParser

from moldau_jepsen.chaos.nemesis.nemesis import FaultEvent
from moldau_jepsen.checkers import Anomaly, AnomalyKind, CheckOptions, check_history
from moldau_jepsen.history import Kind, Operation, Poll, Send, Status, TopicPartition
from moldau_jepsen.reports.chaos import CALM, FAILED, ChaosReport, ClusterSample, chaos_page, describe
from moldau_jepsen.reports.consumption import GroupFigures, GroupReads
from moldau_jepsen.reports.coverage import MachineRows, MessageRow, TransitionRow
from moldau_jepsen.reports.load import Latencies, series_of
from moldau_jepsen.reports.over_time import Active, PartitionSeries, PartitionState
from moldau_jepsen.reports.page import Origin

P = TopicPartition("t", 0)
ORIGIN = Origin(date="2026-11-01 10:00 UTC", version="Moldau 9", machine="a machine", command="moldau chaos run")


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
            origin=ORIGIN,
            verdict=verdict,
            series=series_of(HISTORY),
            faults=[
                FaultEvent(kind="kill", target="one", nodes=(2,), begin_ms=150, end_ms=2900, detail="a & b"),
                FaultEvent(
                    kind="bit-rot", target="one", nodes=(), begin_ms=150, end_ms=9, detail="no file", took_effect=False
                ),
            ],
            samples=[
                ClusterSample(at_ms=0, in_sync_min=3, leaderless=0, high_watermark_sum=0),
                ClusterSample(at_ms=3000, in_sync_min=2, leaderless=1, high_watermark_sum=4),
            ],
            duration_s=3.2,
            settings={"seed": "7"},
            deaths=["broker 3 ended by itself"],
            operations={operation.index: operation for operation in HISTORY},
            reads=GroupFigures(
                lag_ms={"p50": 4.25, "p99": 30.0, "p99.9": 40.0, "max": 56.0},
                lags=1_900,
                groups=(GroupReads(group="readers", once=1_800, twice=90, more=10),),
                unread=3,
            ),
        )
    )
    reader = Text()
    reader.feed(page)
    assert not reader.open
    reported = " ".join(reader.text.split())
    assert "realtime lag 4.2 ms median; p99 30 ms, worst 56 ms" in reported
    assert "The realtime lag of 1,900 records: from a record's acknowledgement to the first poll" in reported
    assert "Records read by groups group records given once twice more often readers 1,800 90 10" in reported
    assert "Anomalies found: int-poll-skip, lost-write, unseen" in reader.text
    assert "value 1 was acknowledged and is not in the final read" in reader.text
    assert "operation 1 of process 0, 0.100 s to 0.130 s, send ok; send 1 to t-0 at offset 1" in reader.text
    assert "a & b" in reader.text
    assert "broker 3 ended by itself" in reader.text
    assert page.count('class="lane"') == 2, "for wide and narrow screens"
    words = " ".join(reader.text.split())
    assert "faults 1 in 3 s; 1 more of the plan had no effect" in words
    done, missed = words.partition("Planned only")[::2]
    assert "kill one 2 0.1 2.9 a & b" in done
    assert "no file" not in done
    assert "bit-rot one 0.1 0.0 no file" in missed
    assert page.count('class="lane dark"') == 2
    assert "Smallest in-sync set" in reader.text
    assert "<test>" in reader.text
    assert CALM not in reader.text


def test_a_run_without_effective_faults_says_so() -> None:
    missed = FaultEvent(kind="kill", target="one", nodes=(), begin_ms=150, end_ms=900, detail="busy", took_effect=False)
    for faults in ([], [missed]):
        quiet = ChaosReport(
            title="t",
            origin=ORIGIN,
            verdict=check_history([], CheckOptions()),
            series=series_of([]),
            faults=faults,
            samples=[],
            duration_s=1,
            settings={},
        )
        assert CALM in chaos_page(quiet)
        assert CALM not in chaos_page(replace(quiet, faults=[replace(missed, nodes=(1,), took_effect=True)]))


def test_a_long_poll_is_shown_around_what_an_anomaly_is_about() -> None:
    pairs = tuple((offset, offset + 1000) for offset in range(500))
    poll = Operation(
        index=7,
        process=1,
        kind=Kind.POLL,
        status=Status.OK,
        begun_ms=0,
        ended_ms=1,
        operations=(Poll(((P, pairs), (TopicPartition("u", 0), pairs))),),
    )
    anomaly = Anomaly(kind=AnomalyKind.DUPLICATE, allowed=False, text="", partition=P, offsets=(3, 300))
    text = describe(poll, anomaly)
    assert "t-0: 0=1000, 1=1001, 2=1002, 3=1003, 4=1004, 5=1005, 6=1006, 297=1297," in text
    assert "303=1303 and 486 more from offset 0 to 499" in text
    assert text.endswith(
        "u-0: " + ", ".join(f"{at}={at + 1000}" for at in range(20)) + " and 480 more from offset 0 to 499"
    )
    short = Operation(
        index=8,
        process=1,
        kind=Kind.POLL,
        status=Status.OK,
        begun_ms=0,
        ended_ms=1,
        operations=(Poll(((P, pairs[:5]),)),),
    )
    assert describe(short, anomaly).endswith("poll t-0: 0=1000, 1=1001, 2=1002, 3=1003, 4=1004")


def coverage_page(**more: object) -> str:
    report = ChaosReport(
        title="t",
        origin=ORIGIN,
        verdict=check_history(HISTORY, CheckOptions()),
        series=series_of(HISTORY),
        faults=[],
        samples=[ClusterSample(at_ms=0, in_sync_min=3, leaderless=0, high_watermark_sum=0)],
        duration_s=3.0,
        settings={},
        operations={operation.index: operation for operation in HISTORY},
    )
    return chaos_page(replace(report, **more))


def test_the_page_tells_coverage_or_why_it_is_absent() -> None:
    """The page shows messages and transitions, or the reason for their absence."""
    row = MessageRow(
        name="Produce",
        api_key=0,
        server="broker",
        versions_served=(3, 4),
        versions_seen=(4,),
        requests=5,
        responses=4,
        senders=("client",),
        by_version={"4": (5, 4)},
        errors={"NOT_LEADER_OR_FOLLOWER": 2},
    )
    machines = (MachineRows(name="quorum", transitions=(TransitionRow(before="", after="another one", count=3),)),)
    page = coverage_page(
        messages=(row,), messages_hint="as the proxies saw", machines=machines, machines_hint="from outside"
    )
    assert "as the proxies saw" in page
    assert "<td>NOT_LEADER_OR_FOLLOWER</td>" in page.replace(' class="words"', "")
    assert "<b>quorum</b> 1 of 1" in page
    assert "from outside" in page
    missing = coverage_page(messages=(row,), messages_missing="no proxies stand before the nodes")
    assert "Not observed: no proxies stand before the nodes." in missing
    assert "Produce" not in missing


def test_partitions_one_by_one_take_the_place_of_sums() -> None:
    series = PartitionSeries(
        name="t-0", states=(PartitionState(0.0, 1, 0, (1, 2), 2),), high_watermarks=((0.0, 0.0), (1.0, 5.0))
    )
    page = coverage_page(partitions=(series,), active=(Active(0.0, 101, 1),))
    assert 'aria-label="In-sync sets over time"' in page
    assert 'aria-label="High watermarks over time"' in page
    assert "Smallest in-sync set" not in page
    assert "Smallest in-sync set" in coverage_page()


def test_the_page_of_a_failed_run_claims_no_soundness() -> None:
    """Violations that members of share groups saw are judged apart from the history of sends and polls."""
    calm = replace(check_history(HISTORY[:1], CheckOptions()), valid=True, anomalies=(), counts={})
    lost = "share-lost: offset 4 of share-0: delivered 0 times, neither accepted nor rejected"
    page = coverage_page(verdict=calm, deaths=[lost])
    assert lost in page
    assert FAILED in page
    assert "No anomaly" not in page
    assert "No anomaly: nothing acknowledged was lost" in coverage_page(verdict=calm)


def test_allowed_anomalies_are_not_counted() -> None:
    """A page that said "No anomaly" had "Anomalies: G0 5" as a heading."""
    found = tuple(Anomaly(kind=AnomalyKind.G0, allowed=True, text=f"cycle {number}") for number in range(5))
    calm = replace(check_history(HISTORY[:1], CheckOptions()), valid=True, anomalies=found, counts={AnomalyKind.G0: 5})
    page = coverage_page(verdict=calm)
    reader = Text()
    reader.feed(page)
    words = " ".join(reader.text.split())
    assert "No anomaly: nothing acknowledged was lost" in words
    assert "<h2>Anomalies</h2>" not in page
    assert "<h2>Allowed by the configuration</h2>" in page
    assert "G0 5" in words
    wrong = Anomaly(kind=AnomalyKind.LOST_WRITE, allowed=False, text="value 9 is lost")
    both = replace(calm, valid=False, anomalies=(*found, wrong), counts={AnomalyKind.G0: 5, AnomalyKind.LOST_WRITE: 1})
    page = coverage_page(verdict=both)
    anomalies, allowed = page.partition("<h2>Anomalies</h2>")[2].split("<h2>Allowed by the configuration</h2>")
    assert "value 9 is lost" in anomalies
    assert "G0" not in anomalies
    assert "cycle 4" in allowed


def test_the_page_tells_when_it_was_judged_again() -> None:
    assert "judged again" not in coverage_page()
    later = replace(ORIGIN, date="2027-01-01 10:00 UTC", command="moldau chaos report x")
    page = coverage_page(judged=later)
    assert page.index("2026-11-01 10:00 UTC; Moldau 9; a machine") < page.index("judged again; 2027-01-01 10:00 UTC")
