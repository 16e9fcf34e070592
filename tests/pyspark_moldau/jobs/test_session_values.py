"""Values come out of sessions as they went in, also those that pandas takes for null or Python has no time for."""

import datetime
import itertools
import math
import pickle

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import types

from pyspark_moldau.jobs.queries.session_values import (
    DATE,
    DOUBLE,
    INTERVAL,
    PLAIN,
    TIME,
    WHOLE,
    Form,
    Nested,
    carrier_of,
    read,
    summary_of,
)

FAR_US = 1_767_225_600_000_000_000  # milliseconds of 2026 taken for microseconds, in the year 57971
FUNCTIONS = ("first", "last", "min", "max", "count", "list")


@pytest.mark.parametrize(
    ("carrier", "texts", "expected"),
    [
        (DOUBLE, ["NaN", None, "1.5"], ["nan", "1.5", "1.5", "nan", 2, ["nan", None, "1.5"]]),
        (DOUBLE, ["1.5", "NaN"], ["1.5", "nan", "1.5", "nan", 2, ["1.5", "nan"]]),
        (WHOLE, ["9007199254740993", None], [2**53 + 1, None, 2**53 + 1, 2**53 + 1, 1, [2**53 + 1, None]]),
        (TIME, [str(FAR_US), "7"], [f"{FAR_US}", "7", "7", f"{FAR_US}", 2, [f"{FAR_US}", "7"]]),
        (DATE, [None, "20000000"], [None, "20000000", "20000000", "20000000", 1, [None, "20000000"]]),
    ],
)
def test_values_travel_as_what_they_are(carrier, texts, expected):
    values = [None if text is None else read(text, carrier) for text in texts]
    assert [summary_of(function, carrier, values) for function in FUNCTIONS] == expected


def test_a_sum_with_nan_is_nan():
    assert summary_of("sum", DOUBLE, [1.5, math.nan, None]) == "nan"
    assert summary_of("sum", DOUBLE, [None]) is None


@pytest.mark.parametrize("carrier", [WHOLE, DOUBLE])
def test_functions_of_all_small_sessions_skip_nulls_alone(carrier):
    """A zero is a value: pandas' nullable numbers, with the sum of no value as null, say what Spark's functions say."""
    for values in itertools.chain.from_iterable(itertools.product((None, -1, 0, 1), repeat=n) for n in (1, 2, 3)):
        known = pd.Series(values, dtype="Int64")
        wanted = {"sum": known.sum(min_count=1), "min": known.min(), "max": known.max()}
        numbers = {name: None if value is pd.NA else int(value) for name, value in wanted.items()}
        numbers |= {"first": values[0], "last": values[-1]}
        held = [None if value is None else read(str(value), carrier) for value in values]
        for name, number in numbers.items():
            found = summary_of(name, carrier, held)
            assert (None if found is None else float(found)) == number, (name, values)
        assert summary_of("count", carrier, held) == known.count()


def test_states_of_earlier_releases_are_read():
    """They hold times in UTC without a time zone, and dates."""
    times = [pd.Timestamp(1_500_000, unit="us"), None, 7]
    assert summary_of("list", TIME, times) == ["1500000", None, "7"]
    assert summary_of("min", DATE, [datetime.date(1970, 1, 3), 1]) == "1"
    assert summary_of("max", INTERVAL, [datetime.timedelta(days=1), None, 5]) == "86400000000"


DOUBLES = types.ArrayType(types.DoubleType())
PARTS = types.StructType(
    [
        types.StructField("d", types.DoubleType()),
        types.StructField("t", types.TimestampType()),
        types.StructField("text", types.StringType()),
        types.StructField("all", DOUBLES),
        types.StructField("by", types.MapType(types.IntegerType(), types.FloatType())),
    ]
)
GIVEN = {
    "_0": "NaN",
    "_1": f"{FAR_US}",
    "_2": "NaN",
    "_3": np.array(["NaN", None, "1.5"], dtype=object),
    "_4": np.array([{"_0": "7", "_1": "NaN"}, {"_0": "8", "_1": None}], dtype=object),
}
SENT = {
    "_0": "nan",
    "_1": f"{FAR_US}",
    "_2": "NaN",
    "_3": ["nan", None, "1.5"],
    "_4": [{"_0": "7", "_1": "nan"}, {"_0": "8", "_1": None}],
}


@pytest.mark.parametrize(
    ("kind", "given", "sent"),
    [
        (DOUBLES, GIVEN["_3"], SENT["_3"]),
        (PARTS, GIVEN, SENT),
        (types.ArrayType(PARTS), np.array([None, GIVEN], dtype=object), [None, SENT]),
        (types.MapType(PARTS, DOUBLES), [{"_0": GIVEN, "_1": None}], [{"_0": SENT, "_1": None}]),
    ],
)
def test_parts_travel_as_what_they_are(kind, given, sent):
    """NaN inside of an array, a struct or a map became null, and a far time there ended the job."""
    carrier = carrier_of(kind)
    values = pickle.loads(pickle.dumps([None, read(given, carrier)]))
    found = [summary_of(function, carrier, values) for function in ("first", "last", "count", "list")]
    assert found == [None, sent, 1, [None, sent]]


def test_parts_that_nothing_changes_travel_as_they_are():
    kind = types.MapType(
        types.StringType(), types.StructType([types.StructField("s", types.ArrayType(types.BinaryType()))])
    )
    assert carrier_of(kind) == PLAIN
    assert carrier_of(types.ArrayType(types.DateType())) == Nested(Form.ARRAY, (DATE,))


def test_fields_of_equal_names_travel_as_numbers():
    """Arrow refuses such a struct, and the job ended; names that differ in case are not equal."""
    texts = [types.StructType([types.StructField(name, types.StringType()) for name in pair]) for pair in ("aa", "aA")]
    equal, alike = (carrier_of(types.ArrayType(kind)) for kind in texts)
    assert equal == Nested(Form.ARRAY, (Nested(Form.STRUCT, (PLAIN, PLAIN), ("a", "a")),))
    assert alike == PLAIN
    held = read([{"_0": "x", "_1": "y"}, None], equal)
    assert summary_of("last", equal, [held]) == [{"_0": "x", "_1": "y"}, None]


def test_parts_in_states_of_earlier_releases_are_read():
    """They hold what pandas made: arrays of numpy with NaN for null, dicts, and times of the session's time zone."""
    former = {
        "d": math.nan,
        "t": pd.Timestamp("1970-01-01 02:00:01.5"),
        "text": None,
        "all": np.array([1.5, math.nan]),
        "by": {7: np.float32(0.5), 8: None},
    }
    sent = {"_0": "nan", "_1": "3601500000", "_2": None, "_3": ["1.5", None], "_4": [{"_0": "7", "_1": "0.5"}]}
    sent["_4"].append({"_0": "8", "_1": None})
    assert summary_of("last", carrier_of(PARTS), [None, former], "Europe/Zurich") == sent
    days, whole = types.ArrayType(types.DateType()), types.ArrayType(types.LongType())
    times = np.array([pd.Timestamp(7, unit="us"), pd.NaT, None], dtype=object)
    assert summary_of("first", carrier_of(types.ArrayType(types.TimestampType())), [times]) == ["7", None, None]
    assert summary_of("first", carrier_of(days), [np.array([datetime.date(1970, 1, 3), None])]) == ["2", None]
    assert summary_of("list", carrier_of(whole), [np.array([1.0, math.nan]), None]) == [["1", None], None]
    squares = types.ArrayType(whole)
    assert summary_of("first", carrier_of(squares), [np.array([[1, 2], [3, 4]])]) == [["1", "2"], ["3", "4"]]
