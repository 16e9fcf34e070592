"""Goal: a build of a view that was killed at any step is continued by the next one.

Method: the folder as the killed build leaves it; the query that fills the version is a function of the test.
"""

import pytest

from pyspark_moldau.jobs import views

VIEW = """
[cluster]
"bootstrap.servers" = "127.0.0.1:9092"
[run]
checkpoint = "state"
[source]
topics = ["flights"]
[view]
path = "delays"
query = "select 1"
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.setattr(views, "check_job", lambda *given: None)
    monkeypatch.setattr(views, "_run_stream", lambda job, number, session, timeout_s: f"built {number}")
    (tmp_path / "job.toml").write_text(VIEW)
    return views.view_job(tmp_path / "job.toml")


@pytest.mark.parametrize("left", [(), ("version.json.0123",)], ids=["before the note", "within the note"])
@pytest.mark.parametrize("before", [0, 1])
def test_a_version_without_a_note_is_begun_again(job, left, before):
    for number in range(1, before + 1):
        assert views.build(job, session="no session") == (views.versions_of(job.path)[-1], f"built {number}")
    folder = job.path / f"v{before + 1}"
    folder.mkdir(parents=True)
    for name in left:
        (folder / name).write_text("{")
    version, report = views.build(job, session="no session")
    assert (version.number, version.is_complete, report) == (before + 1, True, f"built {before + 1}")
