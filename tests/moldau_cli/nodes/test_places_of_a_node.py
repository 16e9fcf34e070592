"""Goal: directories and ports that a node could not use, or would lose, are named before anything is written.

Method: commands in this process on files whose slips are typical: a path of Kafka's examples, an empty variable, a
comma, a blank, and one port for two listeners.
"""

import errno
import fcntl
import json
import os
import random
import shlex
import socket
from contextlib import ExitStack
from dataclasses import replace

import pytest
import trio

from moldau.runtime.config import (
    BROKER_CONFIG,
    ListenerEndpoint,
    SecurityProtocol,
    listening_refused,
    parse_server_config,
)
from moldau.runtime.ports.objects import ObjectStoreError
from moldau.runtime.ports.real import real_environment
from moldau.runtime.ports.real_disk import RealDisk
from moldau_broker.log.directories.manager import LogManager
from moldau_broker.log.errors import LogStorageError
from moldau_broker.log.files.checksums import write_checksums
from moldau_broker.server import BrokerStartError
from moldau_broker.server.lifecycle.directory_watch import directories_failed
from moldau_cli.nodes.checks import check_directories, check_object_store, check_open_files, check_ports
from moldau_cli.nodes.group.layout import misplaced_data
from moldau_cli.nodes.server import may_pass
from moldau_cli.plans.roll import RollNode
from moldau_jepsen.launcher.ports import take_free_ports
from moldau_quorum.broker_side.reachability import named
from support.commands import run_command

DIRECTORY_ID = "directory.id=AAAAAAAAAAAAAAAAAAAAAQ\n"
NODE = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
{more}
"""


def written(path, more, *, broker=0, controller=1):
    path.write_text(NODE.format(broker=broker, controller=controller, more=more))
    return str(path)


def broker_at(listeners, more):
    keys = {"process.roles": "broker", "node.id": "1", "controller.quorum.voters": "9@c:9093", "listeners": listeners}
    keys["listener.security.protocol.map"] = "P:PLAINTEXT,Q:PLAINTEXT,CONTROLLER:PLAINTEXT"
    return BROKER_CONFIG.parse(keys | more)


async def ports_of(config):
    with ExitStack() as held:
        return await check_ports(real_environment(1), config, held, {})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("log.dirs=/d,data", "log.dirs: 'data' is relative"),
        ("log.dir=data", "log.dir: 'data' is relative"),
        ("log.dirs=/d\nmetadata.log.dir=meta", "metadata.log.dir: 'meta' is relative"),
    ],
)
@pytest.mark.parametrize("command", [("server",), ("server", "--check"), ("node", "check"), ("node", "format")])
def test_a_relative_directory_is_refused(tmp_path, more, said, command):
    """Kafka takes such paths; a node that was started elsewhere would begin with an empty log."""
    file = written(tmp_path / "node.properties", more)
    done = run_command(*command, file)
    assert done.returncode == 2, done
    assert done.stderr.startswith(f"moldau: {file}: {said}")
    assert os.path.abspath(said.split("'")[1]) in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("listener", ["PLAINTEXT", "CONTROLLER", "metrics"])
def test_a_port_in_use_is_a_failure_and_no_wrong_usage(tmp_path, listener):
    """The same file works once the port is free, so that a service manager has to start the node again."""
    broker, controller = take_free_ports(2)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        broker = port if listener == "PLAINTEXT" else broker
        controller = port if listener == "CONTROLLER" else controller
        more = f"log.dirs={tmp_path}/d\n" + (f"metrics.listener=127.0.0.1:{port}" if listener == "metrics" else "")
        file = written(tmp_path / "node.properties", more, broker=broker, controller=controller)
        done = run_command("server", file)
    assert done.returncode == 1, done
    line = done.stderr.splitlines()[-1]
    assert line.startswith(f"moldau: {file}: ")
    assert str(port) in line
    assert "in use" in line
    assert "[Errno" not in line
    assert listener == "metrics" or line.endswith("; stop what uses the port, or configure another one")


def test_an_ipv6_address_is_shown_as_options_take_it():
    """Without brackets, the address that a user copied from a line of the log, or from a table, was refused."""
    assert named({1: ("::1", 9093), 2: ("c2", 9093)}) == "1@[::1]:9093,2@c2:9093"
    assert str(RollNode(node_id=1, roles=("broker",), host="2001:db8::1", port=9092)) == "broker 1 ([2001:db8::1]:9092)"
    config = broker_at("P://[::1]:0", {"metrics.listener": "[::1]:0"})
    found = trio.run(ports_of, config)
    assert found[-1].subject == "metrics [::1]:0"


@pytest.mark.parametrize(
    ("content", "stopped", "said"),
    [
        ("version=1\nnode.id=2\ncluster.id=c\n", False, "missing or bad value: 'directory.id'"),
        (f"version=2\nnode.id=2\ncluster.id=c\n{DIRECTORY_ID}", False, "expected version=1, found '2'"),
        ("", False, "expected version=1, found None"),
        (f"# mine\nversion=1\nnode.id=2\ncluster.id=c\n{DIRECTORY_ID}", True, "not as it was at the clean stop"),
    ],
)
def test_an_identity_that_a_node_refuses_is_no_ok(tmp_path, content, stopped, said):
    """The check called such files sound, or those of a node without a number."""
    identity = tmp_path / "meta.properties"
    identity.write_text(f"version=1\nnode.id=2\ncluster.id=c\n{DIRECTORY_ID}")
    write_checksums(RealDisk(), str(tmp_path))
    identity.write_text(content)
    if stopped:
        (tmp_path / ".kafka_cleanshutdown").touch()
    found = check_directories(real_environment(1), broker_at("P://:0", {"node.id": "2", "log.dirs": str(tmp_path)}))[-1]
    assert found.state == "problem"
    assert said in found.detail


def test_a_new_directory_is_formatted_for_the_nodes_cluster(tmp_path):
    """The command advised to draw an id, with which it then refused the directories of the node."""
    file = written(tmp_path / "node.properties", f"log.dirs={tmp_path}/d1", broker=9092, controller=9093)
    assert run_command("node", "format", file, "--cluster-id", "AyUshreRQAWssT7I_rBNBA").returncode == 0
    file = written(tmp_path / "node.properties", f"log.dirs={tmp_path}/d1,{tmp_path}/d2", broker=9092, controller=9093)
    done = run_command("node", "format", file)
    assert done.returncode == 0, done
    assert "cluster.id=AyUshreRQAWssT7I_rBNBA" in (tmp_path / "d2" / "meta.properties").read_text()


@pytest.mark.parametrize(
    ("more", "refused"),
    [
        ("log.dirs={0}/new,{0}/old", True),
        ("log.dirs={0}/old\nmetadata.log.dir={0}/new", True),
        ("log.dirs={0}/new,{0}/old\nbroker.processes=2", False),
        ("log.dirs={0}/old,{0}/new", False),
        ("log.dirs={0}/new,{0}/old\nmetadata.log.dir={0}/old", False),
    ],
)
def test_another_order_of_directories_begins_no_metadata_log(tmp_path, more, refused):
    """A single node became another cluster, and refused its own broker; a voter lost its vote."""
    for place in ("new", "old/__cluster_metadata"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "old" / "__cluster_metadata" / "meta.properties").touch()
    text = NODE.format(broker=9092, controller=9193, more=more.format(tmp_path))
    found = misplaced_data(RealDisk(), parse_server_config(text, "node.properties", {}))
    assert found.startswith(f"{tmp_path}/old/__cluster_metadata is a metadata log") is refused
    assert refused or not found


@pytest.mark.parametrize("lock", ["__cluster_metadata/.lock", ".lock"])
def test_a_directory_in_use_is_a_failure_and_no_wrong_usage(tmp_path, lock):
    """A node that is still ending has its directories as long as its ports; the service manager must try again."""
    broker, controller = take_free_ports(2)
    (tmp_path / "d" / "__cluster_metadata").mkdir(parents=True)
    more = f"log.dirs={tmp_path}/d\ncontroller.quorum.election.timeout.ms=10"
    file = written(tmp_path / "node.properties", more, broker=broker, controller=controller)
    with open(tmp_path / "d" / lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = run_command("server", file)
    assert done.returncode == 1, done
    assert "another process" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EADDRINUSE, "stop what uses the port, or configure another one"),
        (errno.EACCES, "allow the node to use this port (CAP_NET_BIND_SERVICE), or configure one from 1024"),
        (errno.EADDRNOTAVAIL, "name an address of this machine, or none for all of them"),
        (socket.EAI_NONAME, "name an address of this machine, or none for all of them"),
        (errno.EMFILE, "reason"),
    ],
)
def test_the_advice_for_a_listener_fits_the_error(number, advice):
    """All were said to have a port that is in use."""
    endpoint = ListenerEndpoint(
        listener_name="A", security_protocol=SecurityProtocol.PLAINTEXT, host="b1.example", port=80
    )
    refused = listening_refused(endpoint, OSError(number, "reason"))
    assert refused.startswith("listeners: cannot listen on A://b1.example:80: reason")
    assert advice in refused
    assert ("in use" in refused or "stop" in refused) is (number == errno.EADDRINUSE)


def test_a_foreign_address_is_no_port_in_use():
    """node check said that the listener before has the port, which is the same."""
    found = trio.run(ports_of, broker_at("P://127.0.0.1:0,Q://192.0.2.1:0", {"inter.broker.listener.name": "P"}))
    assert "cannot listen: Cannot assign requested address" in found[-1].detail


@pytest.mark.parametrize(("number", "passes"), [(socket.EAI_AGAIN, True), (socket.EAI_NONAME, False)])
def test_a_silent_name_service_is_no_wrong_usage(number, passes):
    """After a power failure a node may be up before the name service; exit code 2 would leave it down for ever."""
    refused = BrokerStartError("listeners: cannot listen on PLAINTEXT://b1.example:9092")
    refused.__cause__ = socket.gaierror(number, "no name")
    assert may_pass(refused) is passes


def test_absent_controllers_are_a_failure_and_no_wrong_usage(tmp_path):
    """After a power failure brokers may be up long before their controllers, and must not stay down for ever."""
    (controller,) = take_free_ports(1)
    text = NODE.format(broker=0, controller=controller, more=f"log.dirs={tmp_path}/d").replace("node.id=1", "node.id=2")
    text = text.replace("broker,controller", "broker").replace(f",CONTROLLER://127.0.0.1:{controller}", "")
    file = tmp_path / "node.properties"
    file.write_text(text + "initial.broker.registration.timeout.ms=1\n")
    done = run_command("server", str(file))
    assert done.returncode == 1, done
    assert "no controller answered within initial.broker.registration.timeout.ms" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("number", "passes"), [(errno.ENOSPC, True), (errno.EIO, True), (errno.EACCES, False), (errno.EROFS, False)]
)
def test_a_full_disk_is_a_failure_and_no_wrong_usage(tmp_path, number, passes):
    """Others may free it, as the rotation of a log does; a directory of another user stays unusable."""

    class Failing:
        def __getattr__(self, name):
            return getattr(RealDisk(), name)

        def lock(self, path):
            raise OSError(number, os.strerror(number), path)

    logs = LogManager(Failing(), [str(tmp_path)], node_id=1, cluster_id="c", random=random.Random(1))
    with pytest.raises(LogStorageError) as ended:
        logs.start(0)
    assert may_pass(ended.value) is passes
    assert may_pass(directories_failed(logs)) is passes
    assert may_pass(OSError(number, os.strerror(number))) is passes


@pytest.mark.parametrize("url", ["s4://bucket/prefix", "s3://", "file://store"])
def test_an_object_store_that_cannot_be_is_found_by_check(tmp_path, url):
    """The check passed, and the node ended at its start."""
    more = f"log.dirs={tmp_path}/d\nremote.log.storage.system.enable=true\nremote.log.storage.url="
    file = written(tmp_path / "node.properties", more + url)
    done = run_command("server", file, "--check")
    assert done.returncode == 2, done
    assert done.stderr.startswith(f"moldau: {file}: remote.log.storage.url = '{url}': ")
    assert run_command("server", written(tmp_path / "b", f"{more}file://{tmp_path}/store"), "--check").returncode == 0


@pytest.mark.parametrize("second", ["data/", "link", "other/../data"])
@pytest.mark.parametrize("command", [("server", "--check"), ("node", "check"), ("node", "format")])
def test_a_directory_with_two_names_is_refused(tmp_path, second, command):
    """The node started, and had one of the two as a failed disk from then on."""
    (tmp_path / "data").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to("data")
    first, again = tmp_path / "data", f"{tmp_path}/{second}"
    file = written(tmp_path / "node.properties", f"log.dirs={first},{again}")
    done = run_command(*command, file)
    assert done.returncode == 2, done
    assert done.stderr == f"moldau: {file}: log.dirs: {first} and {again} are the same directory\n"


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ("log.dirs={0},{0}/disk-1", "log.dirs"),
        ("log.dirs={0}/disk-1/data,{0}", "log.dirs"),
        ("log.dirs={0}\nmetadata.log.dir={0}/meta-0", "metadata.log.dir"),
        ("log.dirs={0}\nremote.log.storage.url=file://{0}/tier-2/store", "remote.log.storage.url"),
    ],
)
@pytest.mark.parametrize("command", [("server", "--check"), ("node", "check"), ("node", "format")])
def test_a_place_with_a_partitions_name_is_refused(tmp_path, more, key, command):
    """A broker renamed it as a stray log, with the logs or the metadata in it."""
    file = written(tmp_path / "node.properties", more.format(tmp_path / "data"))
    done = run_command(*command, file)
    assert done.returncode == 2, done
    assert done.stderr.startswith(f"moldau: {file}: {key}: {tmp_path}/data/")
    assert done.stderr.count("\n") == 1


def test_a_place_below_a_log_directory_may_have_other_names(tmp_path):
    data = tmp_path / "data"
    more = f"log.dirs={data},{data}/second\nmetadata.log.dir={data}/meta"
    assert run_command("server", written(tmp_path / "node.properties", more), "--check").returncode == 0


@pytest.mark.parametrize("directory", ["", " ", "/data1,/data2", "/data "])
def test_a_directory_that_log_dirs_cannot_hold(tmp_path, directory):
    """An empty variable made the working directory that of the data, and a comma made two directories of one."""
    file = tmp_path / "node.properties"
    options = ("--role", "broker", "--node-id", "1", "--voters", "101@127.0.0.1:1", "--dir", directory)
    done = run_command("node", "init", str(file), *options)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done
    assert f"--dir {directory!r}: expected one directory" in done.stderr
    assert not file.exists()


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (("--role", "controller"), "--role is given twice; --role both makes a node"),
        (("--host", "a b"), "--host: 'a b:9092': a host name has no blanks"),
        (("--voters", "101@127.0.0.1:0"), "--voters: expected id@host:port, not '101@127.0.0.1:0'"),
    ],
)
def test_init_refuses_what_no_node_can_use(tmp_path, more, reason):
    """The last of two roles counted; other nodes could reach neither such a host nor port 0."""
    file = tmp_path / "node.properties"
    options = ("--role", "broker", "--node-id", "1", "--voters", "101@127.0.0.1:1", *more)
    done = run_command("node", "init", str(file), *options)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done
    assert reason in done.stderr
    assert not file.exists()


def test_two_listeners_with_one_port_are_found(tmp_path):
    """Each was free when it was looked at alone; the node could not start."""
    broker, controller, metrics = take_free_ports(3)
    data = f"log.dirs={tmp_path / 'data'}\n"
    file = written(tmp_path / "a", data + f"metrics.listener=127.0.0.1:{broker}", broker=broker, controller=controller)
    done = run_command("node", "check", file, "--json")
    rows = {row["subject"]: row for row in json.loads(done.stdout)["checks"] if row["check"] == "port"}
    assert done.returncode == 1
    metrics_row = rows[f"metrics 127.0.0.1:{broker}"]
    assert metrics_row["state"] == "problem"
    assert metrics_row["detail"] == f"cannot listen: PLAINTEXT://127.0.0.1:{broker} has this port"
    file = written(tmp_path / "b", data + f"metrics.listener=127.0.0.1:{metrics}", broker=broker, controller=controller)
    assert run_command("node", "check", file).returncode == 0


def test_the_next_step_has_quotes_where_it_needs_them(tmp_path):
    file = tmp_path / "my node.properties"
    options = ("--role", "broker", "--node-id", "1", "--voters", "101@127.0.0.1:1", "--dir", str(tmp_path / "data"))
    done = run_command("node", "init", str(file), *options, "--set", "ssl.key.password=secret")
    assert (
        f"; then, as the user that runs the node: moldau node format {shlex.quote(str(file))} --cluster-id ID"
        in done.stderr
    )
    assert f"chown USER {shlex.quote(str(file))}\n" in done.stderr


def test_the_check_tells_a_web_page_from_a_store():
    """The console of a service answers each request with a page, which the library takes for an empty listing."""

    class Console:
        async def list(self, prefix):
            return []

        async def read(self, name, position, count):
            raise ObjectStoreError("s3://b: Generic S3 error: Received non-partial response when range requested")

        def close(self):
            pass

    environment = replace(real_environment(1), open_objects=lambda url: Console())
    keys = {"process.roles": "broker", "node.id": "1", "controller.quorum.voters": "2@c:9093", "log.dirs": "/none"}
    keys |= {"controller.listener.names": "CONTROLLER", "remote.log.storage.system.enable": "true"}
    config = BROKER_CONFIG.parse({**keys, "remote.log.storage.url": "s3://b"})
    (found,) = trio.run(check_object_store, environment, config)
    assert found.state == "problem"
    assert found.detail.endswith("what answers there is no S3 API. A console has another port")


@pytest.mark.parametrize(("limit", "state"), [(63, "problem"), (64, "warning"), (16_383, "warning"), (16_384, "ok")])
def test_the_check_judges_the_limit_of_files(limit, state):
    """A limit with which no node can start was a warning, and the check succeeded."""
    assert check_open_files(limit).state == state
