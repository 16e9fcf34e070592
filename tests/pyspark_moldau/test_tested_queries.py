"""Goal: the guide's test of a Spark query under faults passes, and fails when the query loses a row.

Method: the code of docs/guides/tester.md, with the session and the cluster that all Spark tests share; the long form
runs it by a pytest of its own, as a user does.
"""

import re
from pathlib import Path

import pytest

from moldau_jepsen.testing.pipeline import PipelineError
from pyspark_moldau.session.java import find_java
from support.kit.own_pytest import run_pytest
from support.spark.shared import patiently, shared_brokers, shared_session

pytestmark = [
    pytest.mark.spark,
    pytest.mark.processes,
    pytest.mark.skipif(find_java() is None, reason="no Java 17, 21 or 25 was found"),
    pytest.mark.filterwarnings("ignore"),  # pyspark and py4j leave sockets to the garbage collector
]

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "tester.md"
KEPT = "like 'late%'"


def example():
    """Returns the code of the guide's section."""
    section = GUIDE.read_text().split("\n## A Spark query\n", 1)[1]
    return re.search(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL).group(1)


def run_example(tmp_path, code, name):
    """Runs the test of the guide on topics of its own; a query that Spark gave up at its start is started again."""
    brokers = shared_brokers()
    tries = iter(range(1000))

    def once():
        mark = f"{name}-{next(tries)}"
        scope = {}
        exec(compile(code.replace("departures", f"departures-{mark}"), str(GUIDE), "exec"), scope)
        brokers.restore()
        scope["test_each_late_flight_is_copied_once"](brokers, shared_session(), tmp_path / mark)

    try:
        patiently(once)
    finally:
        brokers.restore()


def test_a_query_under_test_copies_each_row_once(tmp_path):
    run_example(tmp_path, example(), "once")


@pytest.mark.proof
def test_a_query_that_loses_a_row_fails_its_test(tmp_path):
    code = example()
    assert code.count(KEPT) == 1
    with pytest.raises(PipelineError, match="1 acknowledged without effect: 'late 77'"):
        run_example(tmp_path, code.replace(KEPT, f"{KEPT} and value <> 'late 77'"), "lost")


@pytest.mark.proof
def test_the_documented_test_runs_in_a_pytest_of_its_own(tmp_path):
    (tmp_path / "test_query.py").write_text(example())
    done = run_pytest(tmp_path, "-W", "ignore")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
