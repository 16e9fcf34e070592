"""Goal: the code of the pages about Spark runs as it stands there.

Method: a cluster, and the session that all Spark tests share: ``local_session`` returns it to the page, as it returns
a session that its reader has.
"""

import pytest

from moldau.blocking import Producer
from moldau_jepsen.testing import cluster
from pyspark_moldau.session.java import find_java
from support.pages import ADDRESS, ROOT, blocks, name_of
from support.spark.shared import SETTINGS, shared_session

pytestmark = [
    pytest.mark.spark,
    pytest.mark.processes,
    pytest.mark.skipif(find_java() is None, reason="no Java 17, 21 or 25 was found"),
    pytest.mark.filterwarnings("ignore"),  # pyspark and py4j leave sockets to the garbage collector
]


@pytest.fixture
def session():
    """The shared session; the settings that a page gives it end with the test."""
    spark = shared_session()
    yield spark
    for name, value in SETTINGS.items():
        if spark.conf.isModifiable(name):
            spark.conf.set(name, value)


def test_code_of_the_guide_for_data_engineers_runs(session, tmp_path):
    """The README's and the reference's query are built too; their streams have the guide's options and fewer."""
    page = ROOT / "docs" / "guides" / "data-engineer.md"
    files = f'"{tmp_path}/flights.'  # the running JVM has another directory
    with cluster(brokers=1, controllers=1, links=False) as local:
        with Producer({"bootstrap.servers": local.bootstrap}) as producer:
            for number in range(10):
                producer.send("flights", str(number).encode())
        scope = {"BOOTSTRAP": local.bootstrap}
        for code in blocks(page, "python"):
            exec(compile(code.replace('"flights.', files), name_of(page), "exec"), scope)
        assert scope["spark"] is session
        assert scope["day"].count() == 10
        assert scope["spark"].read.parquet(f"{tmp_path}/flights.parquet").count() == 10
        for code in [blocks(ROOT / "README.md", "python")[2], *blocks(ROOT / "docs" / "spark.md", "python")]:
            inner = {"BOOTSTRAP": local.bootstrap}
            exec(compile(code.replace(ADDRESS, repr(local.bootstrap)), "query", "exec"), inner)
            assert inner["flights"].isStreaming
