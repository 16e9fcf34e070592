"""Goal: Spark finds an archive by its setting, whatever the path is. Method: paths in, settings out."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from pyspark_moldau.session.packaging import session_settings


@pytest.mark.parametrize("folder", ["/home/al/my jobs", "/data/a,b", "/data/#1", "/data/50%25", '/data/a"b', "/é"])
def test_the_setting_of_an_archive_names_any_path(folder):
    """Spark took the folder's name behind a path with a space for a part of the path, and found no such file."""
    value = session_settings(Path(folder) / "moldau.zip")["spark.archives"]
    parts = urlsplit(value)
    assert (unquote(parts.path), parts.fragment) == (f"{folder}/moldau.zip", "moldau")
    assert not {" ", ",", '"'} & set(value)


def test_a_plain_path_stays_as_it_is():
    assert session_settings(Path("/opt/moldau.zip"))["spark.archives"] == "/opt/moldau.zip#moldau"
