"""Goal: before Spark starts, a job has asked for all its topics, and says which of them it cannot use.

Method: a cluster that gives each error of Kafka for each place in which a job names a topic.
"""

from types import SimpleNamespace

import pytest

from moldau.protocol.errors import ErrorCode
from pyspark_moldau.client_options import OptionError
from pyspark_moldau.errors import ReadTimeoutError
from pyspark_moldau.jobs.config import cluster as cluster_module
from pyspark_moldau.jobs.config import job_config
from pyspark_moldau.jobs.config.cluster import MISSING_TOPIC, ClusterKeys, check_topics
from pyspark_moldau.jobs.config.job_config import PayloadConfig, SinkConfig, SourceConfig, check_job
from pyspark_moldau.jobs.config.settings import Section
from pyspark_moldau.jobs.errors import JobConfigError

ROOT = Section("job.toml", "", {})
PLACES = {
    "[left] topics": ("a", "b"),
    "[left.payload] dead_letter_topic": ("dead",),
    "[right] topics": ("b", "c"),
    "[sink] topic": ("out",),
}
TOPICS = sorted({topic for topics in PLACES.values() for topic in topics})


class Asked:
    """A cluster whose topics have errors, or that fails; it counts how often it was closed."""

    def __init__(self, monkeypatch):
        self.errors, self.failure, self.closed = {}, None, 0
        self.asked, self.waited_ms = [], []
        monkeypatch.setattr(cluster_module, "reached", self.reached)

    def reached(self, client, limit_ms):
        self.waited_ms.append(limit_ms)
        return self

    def retry(self, what, attempt):
        if self.failure is not None:
            raise self.failure
        return attempt()

    def topic_errors(self, names):
        self.asked.append(names)
        return self.errors

    def forget(self):
        self.closed += 1


@pytest.fixture
def cluster(monkeypatch):
    return Asked(monkeypatch)


def keys(**more):
    return ClusterKeys(servers="b:1", keys={"bootstrap.servers": "b:1"} | more)


@pytest.mark.parametrize("topic", TOPICS)
def test_each_topic_that_a_job_cannot_use_is_named(cluster, topic):
    """A topic without a leader is none: the job waits for one."""
    place = next(place for place, topics in PLACES.items() if topic in topics)
    for code in ErrorCode:
        cluster.errors = {topic: code}
        if code in MISSING_TOPIC:
            message = rf"job\.toml: \{place}: topic {topic} does not exist on b:1; .*topics create {topic}\)"
            with pytest.raises(JobConfigError, match=message):
                check_topics(ROOT, keys(), PLACES, wait_ms=7)
        elif code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            right = "READ" if place.endswith("] topics") else "WRITE"
            with pytest.raises(OptionError, match=rf"^\{place}: .* may not see topic {topic} .* {right} on it"):
                check_topics(ROOT, keys(), PLACES, wait_ms=7)
        else:
            check_topics(ROOT, keys(), PLACES, wait_ms=7)
    assert cluster.asked == [TOPICS] * len(ErrorCode)
    assert cluster.closed == len(ErrorCode)


def test_the_first_topic_in_the_file_is_named_first(cluster):
    for first, second in ((ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),) * 2:
        cluster.errors = {"b": first, "out": second}
        with pytest.raises(OptionError, match=r"^\[left\] topics: .* topic b "):
            check_topics(ROOT, keys(), PLACES, wait_ms=7)
        cluster.errors = {"a": second, "out": first}
        with pytest.raises(JobConfigError, match=r"\[left\] topics: topic a does not exist"):
            check_topics(ROOT, keys(), PLACES, wait_ms=7)


def test_a_cluster_that_fails_is_left_without_connections(cluster):
    cluster.failure = ReadTimeoutError("no answer")
    with pytest.raises(ReadTimeoutError, match="no answer"):
        check_topics(ROOT, keys(), PLACES, wait_ms=7)
    assert cluster.closed == 1


def test_a_key_of_the_client_says_how_long_to_wait(cluster):
    check_topics(ROOT, keys(), PLACES, wait_ms=7)
    check_topics(ROOT, keys(**{"default.api.timeout.ms": "9"}), PLACES, wait_ms=7)
    assert cluster.waited_ms == [7, 9]


def source(*topics, dead=""):
    payload = PayloadConfig(format="json" if dead else "raw", dead_letter_topic=dead)
    return SourceConfig(topics=topics, starting_offsets="earliest", options={}, payload=payload)


def sink(**given):
    return SinkConfig(**({"path": None, "format": "", "partition_by": (), "topic": "", "key": "", "value": ""} | given))


@pytest.fixture
def checked(monkeypatch, tmp_path):
    """Returns what a job checks: its topics, how long it waits for them, and its folder with kind, sink and state."""

    def function(kind, sources, target, has_run=False, **more):
        folders, found = [], []
        monkeypatch.setattr(job_config, "check_folder", lambda _, *given: (folders.append(given), has_run)[1])
        monkeypatch.setattr(
            job_config, "check_topics", lambda _, cluster, topics, wait_ms: found.append((cluster, topics, wait_ms))
        )
        config = SimpleNamespace(root=ROOT, checkpoint=tmp_path, cluster="the cluster")
        check_job(config, kind, sources, target, **more)
        ((cluster, topics, wait_ms),) = found
        assert cluster == "the cluster"
        assert all(folder == tmp_path for folder, *_ in folders)
        return topics, wait_ms, [rest for _, *rest in folders]

    return function


def test_a_job_checks_all_that_its_file_names(checked, tmp_path):
    state = {"on": "l.key = r.key"}
    both = {"left": source("a", "b", dead="dead"), "right": source("b", "c")}
    assert checked("join", both, sink(topic="out"), state=state) == (
        PLACES,
        job_config.FIRST_MS,
        [["join", "out", state]],
    )
    topics, wait_ms, folders = checked("load", {"source": source("a")}, sink(path=tmp_path / "t"), has_run=True)
    assert (topics, wait_ms) == ({"[source] topics": ("a",)}, job_config.KNOWN_MS)
    assert folders == [["load", tmp_path / "t", None]]
    topics, _, folders = checked("view", {"source": source("a")}, None, view=tmp_path / "v")
    assert (topics, folders) == ({"[source] topics": ("a",)}, [["view", tmp_path / "v", None]])


def test_an_export_has_no_folder(checked):
    assert checked("export", {}, sink(topic="out")) == ({"[sink] topic": ("out",)}, job_config.REACH_MS, [])


@pytest.mark.parametrize("read", ["a", "b", "c"])
@pytest.mark.parametrize(
    "place", ["[left.payload] dead_letter_topic", "[right.payload] dead_letter_topic", "[sink] topic"]
)
def test_no_topic_is_read_and_written(checked, read, place):
    """Whichever source reads it, and whatever writes it."""
    written = {"[left.payload] dead_letter_topic": "x", "[right.payload] dead_letter_topic": "y", "[sink] topic": "z"}
    written[place] = read
    dead_of = {name: written[f"[{name}.payload] dead_letter_topic"] for name in ("left", "right")}
    sources = {"left": source("a", "b", dead=dead_of["left"]), "right": source("c", dead=dead_of["right"])}
    side = "right" if read == "c" else "left"
    with pytest.raises(JobConfigError, match=rf"job\.toml: \{place}: {read} is in \[{side}\] topics too, and the job"):
        checked("join", sources, sink(topic=written["[sink] topic"]))
