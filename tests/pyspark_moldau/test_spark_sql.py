"""Goal: SQL statements read and write topics through temporary views, and a table of the catalog says what works.

Method: the statements of docs/spark.md as they stand, with the session and the broker that all Spark tests share.
"""

import re
from pathlib import Path

import pytest

from pyspark_moldau.session.java import find_java
from support.interop.clients import ConfluentClient, create_topic
from support.spark.shared import shared_broker, shared_session

pytestmark = [
    pytest.mark.spark,
    pytest.mark.processes,
    pytest.mark.skipif(find_java() is None, reason="no Java 17, 21 or 25 was found"),
    pytest.mark.filterwarnings("ignore"),  # pyspark and py4j leave sockets to the garbage collector
]

DOCUMENT = Path(__file__).parents[2] / "docs" / "spark.md"


@pytest.fixture
def session():
    return shared_session().newSession()


@pytest.fixture(scope="module")
def bootstrap():
    return shared_broker().bootstrap


def produce(bootstrap, topic, count):
    ConfluentClient(bootstrap).produce(topic, [(b"k%d" % number, b"v%d" % number, []) for number in range(count)])


def offsets_of(session, view):
    return [
        tuple(row) for row in session.sql(f"SELECT partition, count(*) FROM {view} GROUP BY 1 ORDER BY 1").collect()
    ]


def test_the_statements_of_the_page_copy_a_topic(session, bootstrap):
    blocks = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    (block,) = (each for each in blocks if "INSERT INTO" in each)
    for topic in ("sql-flights", "sql-copies"):
        block = block.replace(f"'{topic[4:]}'", f"'{topic}'")
        create_topic(bootstrap, topic, 1, 1)
    produce(bootstrap, "sql-flights", 20)
    code = block.replace("127.0.0.1:9092", bootstrap)
    exec(code, {"spark": session})
    exec(code.splitlines()[-1], {"spark": session})
    read = session.read.format("moldau").option("kafka.bootstrap.servers", bootstrap).option("subscribe", "sql-copies")
    assert sorted(bytes(row["value"]) for row in read.load().collect()) == sorted([b"v%d" % n for n in range(20)] * 2)


def test_a_view_reads_to_the_ends_that_it_found_first(session, bootstrap):
    """Spark keeps the tasks of a Python source; a view that is made again finds other ends."""
    create_topic(bootstrap, "sql-grows", 2, 1)
    produce(bootstrap, "sql-grows", 20)
    options = f"('kafka.bootstrap.servers' '{bootstrap}', subscribe 'sql-grows')"
    create = f"CREATE OR REPLACE TEMPORARY VIEW grows USING moldau OPTIONS {options}"
    session.sql(create)
    first = offsets_of(session, "grows")
    assert sum(count for _, count in first) == 20
    produce(bootstrap, "sql-grows", 10)
    assert offsets_of(session, "grows") == first
    assert session.sql("SELECT * FROM grows WHERE partition = 0").count() == dict(first)[0]
    session.sql(create)
    assert sum(count for _, count in offsets_of(session, "grows")) == 30


def test_a_table_of_the_catalog_says_what_works(session, bootstrap, tmp_path):
    options = f"('kafka.bootstrap.servers' '{bootstrap}', subscribe 't', topic 't')"
    with pytest.raises(Exception, match="use CREATE TEMPORARY VIEW"):
        session.sql(f"CREATE TABLE flights_table USING moldau OPTIONS {options}")
    session.sql(f"CREATE TABLE typed_table (value binary) USING moldau OPTIONS {options} LOCATION '{tmp_path}'")
    try:
        for use in ("SELECT * FROM typed_table", "INSERT INTO typed_table SELECT binary('v')"):
            with pytest.raises(Exception, match="use CREATE TEMPORARY VIEW"):
                session.sql(use).collect()
    finally:
        session.sql("DROP TABLE typed_table")


def test_a_write_that_names_a_table_writes_its_rows(session, bootstrap):
    """The sink sees what it sees of ``save()``, so it cannot refuse the table that stays behind."""
    create_topic(bootstrap, "sql-tables", 1, 1)
    options = {"kafka.bootstrap.servers": bootstrap, "topic": "sql-tables"}
    rows = session.sql("SELECT 'v' AS value")
    writes = {
        "saved_table": lambda name: rows.write.format("moldau").options(**options).saveAsTable(name),
        "created_table": lambda name: rows.writeTo(name).using("moldau").options(**options).create(),
    }
    read = session.read.format("moldau").option("kafka.bootstrap.servers", bootstrap).option("subscribe", "sql-tables")
    for count, (name, write) in enumerate(writes.items(), start=1):
        write(name)
        try:
            assert read.load().count() == count
            with pytest.raises(Exception, match="use CREATE TEMPORARY VIEW"):
                session.table(name).count()
        finally:
            session.sql(f"DROP TABLE {name}")
