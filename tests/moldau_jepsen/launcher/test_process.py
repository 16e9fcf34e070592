"""Goal: signals reach only the intended process, and its reported state is right. Method: real processes
that do nothing.
"""

import errno
import os
import platform
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from moldau_jepsen.launcher import process, process_table
from moldau_jepsen.launcher.cluster import open_cluster, start_cluster
from moldau_jepsen.launcher.directories import exclusive
from moldau_jepsen.launcher.process import ProcessState
from moldau_jepsen.launcher.spec import ClusterSpec, LauncherError, LauncherUsageError, Node

WAIT_MS = 60_000


SLEEPER = "print('up', flush=True); import time; time.sleep(600)"
# The first thread ends by a bare exit(2), which ends no other thread; its own end is all that is seen of the process.
HEADLESS = """
import ctypes, threading, time
def rest():
    print("up", flush=True)
    time.sleep(600)
threading.Thread(target=rest).start()
ctypes.CDLL(None).syscall(60, 0)
"""


@pytest.fixture(params=["proc", "ps"])
def source(request, tmp_path, monkeypatch):
    """Processes are looked at in /proc, and where there is none."""
    if request.param == "ps":
        monkeypatch.setattr(process_table, "PROC", tmp_path / "no-proc")


@pytest.fixture
def sleeper(source, tmp_path):
    with running(SLEEPER, tmp_path) as node:
        yield node


@contextmanager
def running(program, tmp_path):
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n", "before that line it may still be what forked it"
    node = Node(
        node_id=1,
        role="broker",
        port=1,
        directory=str(tmp_path),
        config="-",
        log=str(tmp_path / "log"),
        pid=child.pid,
        started=process.start_mark(child.pid),
    )
    try:
        yield node
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_a_process_is_paused_resumed_and_killed(sleeper):
    assert process.state_of(sleeper.pid, sleeper.started) is ProcessState.RUNNING
    assert process.resident_bytes(sleeper.pid) > 1_000_000
    assert process.send_signal(sleeper, signal.SIGSTOP)
    assert process.wait_state(sleeper, ProcessState.PAUSED, WAIT_MS)
    assert process.send_signal(sleeper, signal.SIGCONT)
    assert process.wait_state(sleeper, ProcessState.RUNNING, WAIT_MS)
    assert process.send_signal(sleeper, signal.SIGKILL)
    assert process.wait_state(sleeper, ProcessState.STOPPED, WAIT_MS)
    assert not process.send_signal(sleeper, signal.SIGKILL)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="exit(2) has another number here")
@pytest.mark.usefixtures("source")
def test_a_process_lives_as_long_as_one_of_its_threads(tmp_path):
    """A broker that is killed within a sync keeps its port until the sync is over."""
    with running(HEADLESS, tmp_path) as node:
        status = Path(f"/proc/{node.pid}/status")
        deadline = time.monotonic() + WAIT_MS / 1000
        while "State:\tZ" not in status.read_text(encoding="ascii"):
            assert time.monotonic() < deadline, "the first thread did not end"
        assert process.state_of(node.pid, node.started) is ProcessState.RUNNING
        assert process.send_signal(node, signal.SIGKILL)
        assert process.wait_state(node, ProcessState.STOPPED, WAIT_MS)


def test_a_stranger_that_got_the_same_number_is_left_alone(sleeper):
    sleeper.started = "1"
    assert process.state_of(sleeper.pid, sleeper.started) is ProcessState.STOPPED
    assert not process.send_signal(sleeper, signal.SIGKILL)
    assert process.start_mark(sleeper.pid) != ""


def test_both_sources_tell_the_same_of_a_process(tmp_path, monkeypatch):
    with running(SLEEPER, tmp_path) as node:
        assert process.send_signal(node, signal.SIGSTOP)
        assert process.wait_state(node, ProcessState.PAUSED, WAIT_MS)
        ours = process_table.look(node.pid)
        monkeypatch.setattr(process_table, "PROC", tmp_path / "no-proc")
        theirs = process_table.look(node.pid)
        assert process_table.look(2**22 + 1) is None, "no process has that number"
    assert theirs.mark.startswith("ps:")
    assert not process_table.same_start(ours.mark, theirs.mark)
    assert process_table.same_start("ps:100", "ps:101")
    assert not process_table.same_start("ps:100", "ps:110")
    assert theirs.state == ours.state == "T"
    assert abs(theirs.resident_bytes - ours.resident_bytes) < 1_000_000
    assert abs(theirs.cpu_ms - ours.cpu_ms) < 2_000


@pytest.mark.parametrize(
    ("text", "expected"), [("00:00:01", 1_000), ("1:02.50", 62_500), ("2-01:00:00", 2 * 86_400_000 + 3_600_000)]
)
def test_processor_times_of_ps_are_read(text, expected):
    """The forms of Linux and of macOS."""
    assert process_table._cpu_ms(text) == expected


def test_waiting_for_a_state_ends_in_time(sleeper):
    assert not process.wait_state(sleeper, ProcessState.STOPPED, 30)


def test_the_last_line_of_a_log_is_reported(sleeper):
    assert process.log_tail(sleeper) == ""
    with open(sleeper.log, "wb") as log:
        log.write(b"x" * 100_000 + b"\nfirst\nlast \n\n")
    assert process.log_tail(sleeper) == "last"


def test_a_directory_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(LauncherUsageError, match=r"is not empty and holds no cluster\.json"):
        start_cluster(tmp_path, ClusterSpec())
    assert os.listdir(tmp_path) == ["thesis.txt"]
    with pytest.raises(LauncherUsageError, match=r"no cluster in .* \(cluster\.json is missing\)"):
        open_cluster(tmp_path)
    with pytest.raises(LauncherUsageError, match="is not a directory"):
        start_cluster(tmp_path / "thesis.txt", ClusterSpec())


def test_a_start_that_is_killed_leaves_a_known_directory(tmp_path, monkeypatch):
    """Only the file of the cluster makes `cluster start`, `stop` and `status` know its directory."""

    class Killed(Exception):
        pass

    def spawn_all(nodes, *, tied_to_parent):
        assert {node.node_id for node in open_cluster(tmp_path).nodes} == {1, 101}
        raise Killed

    monkeypatch.setattr(process, "spawn_all", spawn_all)
    with pytest.raises(Killed):
        start_cluster(tmp_path, ClusterSpec(brokers=1, controllers=1))


def test_a_name_that_is_no_utf8_is_refused_at_once(tmp_path):
    """The files of the nodes could not be written, and the directory was taken for one with other things."""
    with pytest.raises(LauncherUsageError, match=r"/a\\udcff' is not UTF-8; give another --dir"):
        start_cluster(tmp_path / os.fsdecode(b"a\xff"), ClusterSpec())
    assert os.listdir(tmp_path) == []


def test_a_full_disk_names_the_directory(tmp_path, monkeypatch):
    """``cluster start`` on a full disk said ``cannot write None``: a write knows no name of its file."""

    def write_text(path, text, *, encoding):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", write_text)
    with pytest.raises(LauncherUsageError, match=f"^cannot write {re.escape(str(tmp_path))}: No space left on device$"):
        start_cluster(tmp_path, ClusterSpec(brokers=1, controllers=1))


def test_two_commands_do_not_change_one_cluster_at_once(tmp_path):
    with exclusive(tmp_path), pytest.raises(LauncherError, match="another command"), exclusive(tmp_path):
        pytest.fail("the second command got in")


def test_a_bad_setting_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(LauncherUsageError, match=r"num.partition: unknown .* did you mean num.partitions"):
        start_cluster(tmp_path / "cluster", ClusterSpec(settings={"num.partition": "3"}))
    assert not (tmp_path / "cluster").exists()


def test_a_failed_start_shows_the_log_and_leaves_no_process(tmp_path):
    """The error of a node that cannot start holds the end of its log, and no process stays."""
    (tmp_path / "file").touch()
    home = tmp_path / "cluster"
    with pytest.raises(LauncherError, match=r"ended while starting: moldau: .*file"):
        start_cluster(home, ClusterSpec(brokers=1, controllers=1, settings={"log.dirs": str(tmp_path / "file")}))
    states = [open_cluster(home).state(node_id) for node_id in (1, 101)]
    assert states == [ProcessState.STOPPED, ProcessState.STOPPED]


KILLED_HARNESS = """
import os, signal, sys
from pathlib import Path
from moldau_jepsen.launcher import ClusterSpec, start_cluster
cluster = start_cluster(Path(sys.argv[1]), ClusterSpec(brokers=1, controllers=1))
cluster.pause(1)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_paused_node_ends_when_its_harness_is_killed(tmp_path):
    """A node that is paused when its harness is killed ends too."""
    directory = tmp_path / "cluster"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", KILLED_HARNESS, str(directory)], env=environment, timeout=WAIT_MS / 1000, check=False
    )
    assert done.returncode == -signal.SIGKILL
    for node in open_cluster(directory).nodes:
        assert process.wait_state(node, ProcessState.STOPPED, WAIT_MS), f"{node.role} lives on"
