"""Goal: no command starts nodes on the data of another cluster, and a start that fails leaves nothing in the way.

Method: directories without processes; the start fails before it makes any.
"""

import errno
import os
import shutil

import pytest

from moldau_jepsen.launcher import ClusterSpec, LauncherError, LauncherUsageError, LocalCluster, start_cluster
from moldau_jepsen.launcher.directories import exclusive
from moldau_jepsen.launcher.spec import plan_nodes

ONE = ClusterSpec(brokers=1, controllers=1, ports=(1, 2))


@pytest.fixture
def made(tmp_path):
    """Makes the directory of a cluster, and returns it with its nodes."""
    home = tmp_path / "made"
    nodes = plan_nodes(ONE, home, ONE.ports)
    for name in ("broker-1", "controller-101"):
        (home / name).mkdir(parents=True)
    return home, nodes


def test_a_copy_is_not_started(made, tmp_path):
    home, nodes = made
    shutil.copytree(home, tmp_path / "copy")
    with pytest.raises(LauncherUsageError, match=f"copy is a copy of {home}, whose data its nodes would use"):
        LocalCluster(tmp_path / "copy", nodes).launch(1)


def test_a_moved_directory_is_not_started(made, tmp_path):
    home, nodes = made
    home.rename(tmp_path / "moved")
    with pytest.raises(LauncherUsageError, match=f"moved was moved from {home}, .*: move it back there"):
        LocalCluster(tmp_path / "moved", nodes).start_all()


def test_a_link_to_the_directory_is_the_directory(made, tmp_path, monkeypatch):
    home, nodes = made
    (tmp_path / "link").symlink_to(home)
    spawned = []
    monkeypatch.setattr("moldau_jepsen.launcher.process.spawn_all", lambda nodes, **_: spawned.extend(nodes))
    monkeypatch.setattr("moldau_jepsen.launcher.cluster.port_in_use", lambda port: False)
    LocalCluster(tmp_path / "link", nodes).launch(1)
    assert spawned == nodes[:1]


def test_a_link_has_the_lock_of_its_target(made, tmp_path):
    home, _ = made
    (tmp_path / "link").symlink_to(home)
    with exclusive(home), pytest.raises(LauncherError, match="another command"), exclusive(tmp_path / "link"):
        pass


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("existed", [False, True])
def test_a_failed_start_leaves_no_files(tmp_path, monkeypatch, existed, secure):
    """The next start refused a directory that was not empty, and the message named no file."""

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(LocalCluster, "save", full)
    home = tmp_path / "new"
    if existed:
        home.mkdir()
    with pytest.raises(LauncherUsageError, match=f"^cannot write {home}: No space left on device$"):
        start_cluster(home, ClusterSpec(brokers=1, controllers=1, secure=secure))
    assert home.exists() is existed
    assert not existed or not list(home.iterdir())
