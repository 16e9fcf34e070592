"""Goal: Spark finds an archive by its setting, whatever its path is, and all that workers import is in it.

Method: paths in, settings out; then distributions as package managers leave them, in a folder.
"""

from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from pyspark_moldau.session.packaging import files_of, session_settings


@pytest.mark.parametrize("folder", ["/home/al/my jobs", "/data/a,b", "/data/#1", "/data/50%25", '/data/a"b', "/é"])
def test_the_setting_of_an_archive_names_any_path(folder):
    """Spark took the folder's name behind a path with a space for a part of the path, and found no such file."""
    value = session_settings(Path(folder) / "moldau.zip")["spark.archives"]
    parts = urlsplit(value)
    assert (unquote(parts.path), parts.fragment) == (f"{folder}/moldau.zip", "moldau")
    assert not {" ", ",", '"'} & set(value)


def test_a_plain_path_stays_as_it_is():
    assert session_settings(Path("/opt/moldau.zip"))["spark.archives"] == "/opt/moldau.zip#moldau"


def installed(folder, files, **lists):
    contents = dict.fromkeys(files, "") | {f"a.egg-info/{name}": text for name, text in lists.items()}
    for name, text in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return metadata.Distribution.at(folder / "a.egg-info")


def test_a_distribution_without_a_list_of_files_is_whole(tmp_path):
    """Debian's packages have none: the archive named the distribution, and had nothing of it."""
    files = ["a/__init__.py", "a/b/c.py", "a/__pycache__/x.pyc", "_a.so", "other.py"]
    found = installed(tmp_path, files, **{"PKG-INFO": "Name: a", "top_level.txt": "a\n_a\n"})
    assert found.files is None
    assert dict(files_of(found)) == {name: tmp_path / name for name in ("a/__init__.py", "a/b/c.py", "_a.so")}


def test_a_file_that_was_removed_is_left_out(tmp_path):
    """Images of containers are made smaller by removing tests; no archive could be written there."""
    found = installed(tmp_path, ["a.py"], **{"PKG-INFO": "Name: a", "RECORD": "a.py,,\ntests/b.py,,\n"})
    assert dict(files_of(found)) == {"a.py": tmp_path / "a.py"}
