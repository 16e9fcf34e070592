"""Goal: a job counts what its queries did, however long it runs. Method: reports in the form of Spark's."""

from pyspark_moldau.jobs.queries.running import BATCHES_MAX, Figures, Progress, run_queries


def report(number, rows, late=0, letters=None):
    observed = {} if letters is None else {"dead-letters": {"records": letters}}
    operators = [{"numRowsDroppedByWatermark": late}, {"numRowsDroppedByWatermark": 0}]
    return {"batchId": number, "numInputRows": rows, "stateOperators": operators, "observedMetrics": observed}


def test_reports_that_come_again_count_once():
    """Spark keeps the last hundred; those of idle triggers have the number of the batch that comes next."""
    progress = Progress()
    first, idle, second = report(0, 5, letters=2), report(1, 0), report(1, 7, late=3, letters=1)
    for seen in ([first], [first, idle], [first, idle, second], [idle, second]):
        progress.add(seen)
    assert (progress.count, progress.sums) == (2, Figures(rows=12, late=3, dead=3))


def test_the_report_of_the_last_batch_counts():
    """A query ends right after its last batch, between two looks at it."""

    class Query:
        def __init__(self):
            self.recentProgress = [report(0, 5)]

        @property
        def isActive(self):
            self.recentProgress = [report(0, 5), report(1, 7)]
            return False

        def exception(self):
            return None

        def stop(self):
            pass

    assert run_queries({"main": Query}, 60).rows == {"main": 12}


def test_a_job_that_runs_for_long_keeps_few_batches():
    progress = Progress()
    count = 5 * BATCHES_MAX
    for end in range(100, count + 1, 50):
        progress.add(report(number, 3) for number in range(end - 100, end))
        assert len(progress._newest) <= BATCHES_MAX
    assert (progress.count, progress.sums.rows) == (count, 3 * count)
    progress.add(report(number, 9) for number in (0, count - BATCHES_MAX - 1))
    assert (progress.count, progress.sums.rows) == (count, 3 * count), "they were counted long ago"
