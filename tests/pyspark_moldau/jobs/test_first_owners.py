"""Goal: of jobs that begin one table at the same time, one owns it, and the others write nothing.

Method: another job takes the folder between the look and the note of the first one.
"""

import errno
import os

import pytest

from pyspark_moldau.jobs import files, tables
from pyspark_moldau.jobs.errors import JobError
from pyspark_moldau.jobs.files import OWNER, write_first
from pyspark_moldau.jobs.tables import own_table


def test_one_of_two_first_jobs_owns_a_table(tmp_path, monkeypatch):
    table = tmp_path / "flights"

    def after_another(path, text):
        monkeypatch.setattr(tables, "write_first", write_first)
        own_table(table, "faster", "parquet", [])
        return write_first(path, text)

    monkeypatch.setattr(tables, "write_first", after_another)
    with pytest.raises(JobError, match=r"was written by another query \(faster\)"):
        own_table(table, "slower", "parquet", [])
    assert own_table(table, "faster", "parquet", [])["time_zone"] == "UTC"
    assert [each.name for each in table.iterdir()] == [OWNER]


@pytest.mark.parametrize("has_links", [True, False])
def test_a_first_file_is_written_as_a_whole(tmp_path, monkeypatch, has_links):
    def refused(source, target):
        raise OSError(errno.EPERM, "no hard links")

    if not has_links:
        monkeypatch.setattr(files.os, "link", refused)
    path = tmp_path / "note"
    assert write_first(path, "one")
    assert path.read_text() == "one"
    assert os.listdir(tmp_path) == ["note"]
