"""Goal: a node that hangs is ended, so that clients write on within seconds; one that pauses briefly is left alone.
Method: real processes, SIGSTOP of the leader of a partition, and the time until the next acknowledged write.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio

from moldau.producer import Producer
from moldau_cli.nodes.guard import TICK_S, Scheduling, Silence, read_scheduling
from moldau_cli.nodes.watchdog import BEATS_PER_LIMIT, SystemdNotifier, supervise
from moldau_jepsen.launcher import ClusterSpec, start_cluster
from moldau_jepsen.launcher.process import ProcessState
from support.interop.clients import create_topic, wait_for, wait_until

pytestmark = pytest.mark.processes

WATCHDOG_MS = 2000
NEXT_WRITE_S_MAX = 8.0
"""Below broker.session.timeout.ms, after which the controller fences a silent broker without any watchdog. On a machine
with idle cores the write comes in less than 4 s."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    spec = ClusterSpec(settings={"node.watchdog.ms": str(WATCHDOG_MS)})
    running = start_cluster(tmp_path_factory.mktemp("cluster") / "moldau", spec)
    try:
        create_topic(running.bootstrap, "t", 1, 3)
        wait_until(running.is_whole, "all replicas are in sync")
        yield running
    finally:
        running.shut_down()


def write_with_librdkafka(bootstrap, hang):
    from confluent_kafka import Producer as LibrdkafkaProducer

    errors = []
    producer = LibrdkafkaProducer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    producer.produce("t", b"before", partition=0)
    assert producer.flush(60) == 0
    begun = hang()
    producer.produce("t", b"after", partition=0, on_delivery=lambda error, message: errors.append(error))
    assert producer.flush(60) == 0
    assert errors == [None]
    return time.monotonic() - begun


def write_with_own_client(bootstrap, hang):
    async def main():
        async with Producer({"bootstrap.servers": bootstrap, "acks": "all"}) as producer:
            await (await producer.send("t", b"before", partition=0))
            begun = hang()
            await (await producer.send("t", b"after", partition=0))
            return time.monotonic() - begun

    return trio.run(main)


@pytest.mark.parametrize("write", [write_with_librdkafka, write_with_own_client])
def test_hung_leader_is_killed_and_succeeded(cluster, write):
    """SIGSTOP of the leader: the guard kills it, another broker leads, and the next write is acknowledged."""
    leader = wait_for(lambda: cluster.partition_leader("t", 0), "partition 0 has a leader")

    def hang():
        cluster.pause(leader)
        return time.monotonic()

    took = write(cluster.bootstrap, hang)
    print(f"{write.__name__}: next acknowledged write {took:.2f} s after SIGSTOP")
    assert took < NEXT_WRITE_S_MAX
    wait_until(lambda: cluster.state(leader) is ProcessState.STOPPED, "the guard kills the node")
    cluster.start_node(leader)
    wait_until(cluster.is_whole, "all replicas are in sync")


def test_short_pause_kills_no_node(cluster):
    """A pause of a quarter of the limit changes nothing: the same process runs on."""
    node = cluster.brokers[0]
    pid = node.pid
    cluster.pause(node.node_id)
    time.sleep(WATCHDOG_MS / 4000)
    cluster.resume(node.node_id)
    time.sleep(2 * WATCHDOG_MS / 1000)
    assert cluster.state(node.node_id) is ProcessState.RUNNING
    assert cluster.node(node.node_id).pid == pid


STUCK = """
import time, trio
from moldau_cli.nodes.watchdog import SystemdNotifier, supervise

async def main():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervise, 1000, SystemdNotifier({}, 0), None)
        await trio.sleep(2)
        print("turned for 2 s", flush=True)
        time.sleep(30)

trio.run(main)
"""


def test_stuck_event_loop_is_killed():
    """The loop turns for twice the limit unharmed; then a call blocks it, as a hung system call would."""
    begun = time.monotonic()
    stuck = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=60, check=False)
    assert stuck.returncode == -signal.SIGKILL
    assert stuck.stdout == "turned for 2 s\n"
    assert "watchdog-killed" in stuck.stderr
    assert time.monotonic() - begun < 25


def test_time_without_a_processor_is_no_silence():
    """Ticks count for what the node did not wait for a processor; ten times the limit is the end all the same."""
    idle = Silence(1.0, Scheduling(1.0, 5.0))
    assert [idle.tick(Scheduling(1.0, 5.0)) for _ in range(10)] == [False] * 9 + [True]
    half = Silence(1.0, Scheduling())
    waits = [Scheduling(number + 1.0, TICK_S / 2 * (number + 1)) for number in range(20)]
    assert [half.tick(wait) for wait in waits] == [False] * 19 + [True]
    starved = Silence(1.0, Scheduling())
    ended = [starved.tick(Scheduling(number + 1.0, TICK_S * (number + 1))) for number in range(100)]
    assert ended == [False] * 99 + [True]


def test_a_wait_that_goes_on_is_no_silence():
    """The kernel adds a wait when it is over; until then the thread is ready and has not run."""
    waits = Silence(1.0, Scheduling(1.0, 5.0))
    assert not any(waits.tick(Scheduling(1.0, 5.0, is_ready=True)) for _ in range(30))
    assert not waits.tick(Scheduling(1.1, 8.0, is_ready=True))
    assert [waits.tick(Scheduling(1.1, 8.0)) for _ in range(10)] == [False] * 9 + [True]
    loops = Silence(1.0, Scheduling(1.0, 5.0))
    ended = [loops.tick(Scheduling(1.0 + TICK_S * (number + 1), 5.0, is_ready=True)) for number in range(10)]
    assert ended == [False] * 9 + [True]


def test_the_kernel_tells_waits_for_a_processor():
    """A process that shares one processor with another has waited; where the kernel counts nothing, it is zero."""
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("the kernel counts no waits for a processor")
    processor = min(os.sched_getaffinity(0))
    busy = f"import os, time; os.sched_setaffinity(0, [{processor}]); end = time.monotonic() + 20\n"
    busy += "while time.monotonic() < end: pass"
    running = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(2)]
    sleeping = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        wait_until(lambda: all(read_scheduling(p.pid).waited_s > TICK_S for p in running), "both have waited")
        found = [read_scheduling(process.pid) for process in running]
        assert all(each.is_ready and each.ran_s > 0 for each in found)
        wait_until(lambda: not read_scheduling(sleeping.pid).is_ready, "the third process waits for input")
        assert read_scheduling(sleeping.pid).ran_s > 0
    finally:
        for process in (*running, sleeping):
            process.kill()
            process.communicate()
    ended = read_scheduling(running[0].pid)
    assert (ended.ran_s, ended.waited_s, ended.is_ready) == (0.0, 0.0, False)


def test_a_bad_notification_socket_ends_no_node(tmp_path, caplog):
    """A socket that does not exist or refuses the node is logged once, however many beats follow."""
    notifier = SystemdNotifier({"NOTIFY_SOCKET": str(tmp_path)}, 7)  # a directory: the kernel refuses the datagram
    for _ in range(3):
        notifier.send("WATCHDOG=1")
    assert [record.getMessage().split()[0] for record in caplog.records] == ["systemd-not-notified"]


def test_systemd_hears_ready_beats_and_stopping(tmp_path):
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address)
        systemd.settimeout(10)
        notifier = SystemdNotifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "500000", "WATCHDOG_PID": "7"}, 7)
        assert notifier.limit_ms == 500

        async def main():
            with trio.move_on_after(0.35):
                await supervise(0, notifier, None)

        trio.run(main)
        heard = [systemd.recv(100).decode()]
        while heard[-1] != "STOPPING=1":
            heard.append(systemd.recv(100).decode())
    assert heard[0] == "READY=1"
    assert heard.count("WATCHDOG=1") >= 2
    assert BEATS_PER_LIMIT >= 2
    other = SystemdNotifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "100000", "WATCHDOG_PID": "8"}, 7)
    assert other.limit_ms == 0
