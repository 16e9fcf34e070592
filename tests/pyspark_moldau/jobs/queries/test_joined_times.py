"""Goal: the bounds of a join are lengths of time, in every time zone of the session, and each record has a time.

Method: pairs of records around the two changes of the clocks of New York, joined by the session that all Spark tests
share.
"""

from types import SimpleNamespace

import pytest

from pyspark_moldau.jobs.join import joined
from pyspark_moldau.session.java import find_java
from support.spark.shared import shared_session

pytestmark = [
    pytest.mark.spark,
    pytest.mark.processes,
    pytest.mark.skipif(find_java() is None, reason="no Java 17, 21 or 25 was found"),
    pytest.mark.filterwarnings("ignore"),  # pyspark and py4j leave sockets to the garbage collector
]

ZONE = "spark.sql.session.timeZone"
SPRING, AUTUMN = ("2026-03-07 17:00:00 UTC", 23.5), ("2026-10-31 16:00:00 UTC", 24.5)
"""A time at noon of the day before the change, and a number of hours between 24 and the length of the next day."""


def side(spark, time, hours=0.0):
    micros = f"unix_micros(timestamp'{time}') + {int(hours * 3_600_000_000)}"
    return spark.sql(f"select 'a' as key, timestamp_micros({micros}) as timestamp")


def job(**settings):
    given = {"before": "1 minute", "after": "1 minute", "kind": "inner", "columns": {"at": "r.timestamp"}} | settings
    return SimpleNamespace(
        **given,
        times=("timestamp", "timestamp"),
        watermarks=("1 hour", "1 hour"),
        on="l.key = r.key",
    )


@pytest.mark.parametrize("length", ["1 day", "24 hours", "1440 minutes"])
@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_a_day_has_24_hours_in_every_time_zone(zone, length):
    spark = shared_session()
    former = spark.conf.get(ZONE)
    spark.conf.set(ZONE, zone)
    try:
        for time, hours in (SPRING, AUTUMN):
            first, second = side(spark, time), side(spark, time, hours)
            assert joined(first, second, job(after=length)).count() == (hours < 24), (time, "after")
            assert joined(second, first, job(before=length)).count() == (hours < 24), (time, "before")
    finally:
        spark.conf.set(ZONE, former)


def test_a_record_without_a_time_is_left_out():
    """A stream would keep such a left record for ever, and never write it."""
    times = "inline(array(struct('a', timestamp'2026-03-07 17:00:00 UTC'), struct('b', null))) as (key, timestamp)"
    sides = [shared_session().sql(f"select {times}") for _ in range(2)]
    rows = joined(*sides, job(kind="left-outer", columns={"l": "l.key", "r": "r.key"}))
    assert [tuple(row) for row in rows.collect()] == [("a", "a")]
