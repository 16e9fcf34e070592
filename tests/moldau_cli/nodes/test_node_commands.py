"""Goal: a node that ``moldau node`` prepared starts, and wrong machines, directories and clusters are found before.

Method: commands in this process on real directories; one real node, which others are checked against.
"""

import datetime
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from moldau.runtime.config import advertised_listeners, join_address, listeners, parse_server_config
from moldau.runtime.config.listeners import SecurityProtocol
from moldau.runtime.ports.real import real_environment
from moldau.runtime.tls.context import ListenerTls
from moldau_cli.errors import UsageError
from moldau_cli.nodes import checks
from moldau_cli.nodes import format as format_module
from moldau_cli.nodes.checks import clock_offset_ms
from moldau_cli.nodes.file import INTERNAL_REPLICAS, NewNode, configuration_text, parse_voters
from moldau_jepsen.launcher.ports import take_free_ports
from moldau_quorum.node.voters.voter_address import QuorumView
from support.certificates import authority
from support.client.socket_cluster import cluster
from support.commands import run_command
from support.interop.clients import wait_until
from support.started import Command

CLUSTER = "AyUshreRQAWssT7I_rBNBA"
UNIT = Path(__file__).parents[3] / "deploy" / "systemd" / "moldau@.service"


def init(directory, name, *more, voters, code=0):
    """Writes a configuration whose data are below ``directory``; returns the file and what the command left."""
    file = directory / f"{name}.properties"
    done = run_command("node", "init", str(file), "--voters", voters, "--dir", str(directory / name), *more, "--json")
    assert done.returncode == code, done
    return file, done


def findings(done):
    return {(one["check"], one["state"]): one["detail"] for one in json.loads(done.stdout)["checks"]}


@given(
    roles=st.sampled_from([("broker",), ("controller",), ("broker", "controller")]),
    cluster_id=st.sampled_from(["", CLUSTER]),
    rack=st.sampled_from(["", "a"]),
    metrics=st.sampled_from(["", "127.0.0.1:9644"]),
    host=st.sampled_from(["b1.example", "10.0.0.1", "::1"]),
    stores=st.sampled_from([("", ""), ("/n.pem", ""), ("/n.p12", "/t.pem")]),
    more=st.dictionaries(
        st.sampled_from(["min.insync.replicas", "num.partitions", "listener.name.ssl.ssl.client.auth"]), st.just("1")
    ),
)
def test_every_written_file_can_be_used(roles, cluster_id, rack, metrics, host, stores, more):
    """The file of each role parses, and has what was asked for; what was not asked for is a comment."""
    node = NewNode(
        roles=roles,
        node_id=2 if "controller" in roles else 7,
        voters=parse_voters("1@c1:9093,2@c2:9093,3@[::1]:9093"),
        host=host,
        port=9092,
        directories=("/d1", "/d2"),
        cluster_id=cluster_id,
        rack=rack,
        metrics=metrics,
        keystore=stores[0],
        truststore=stores[1],
        more={key: "none" if key.endswith("auth") else value for key, value in more.items()},
    )
    config = parse_server_config(configuration_text(node), "node.properties", {})
    assert config.get_list("process.roles") == roles
    assert config.get_list("log.dirs") == ("/d1", "/d2")
    assert (config.get_str_or_none("cluster.id") or "") == cluster_id
    assert (config.get_str_or_none("metrics.listener") or "") == metrics
    assert (config.get_str_or_none("broker.rack") or "") == (rack if "broker" in roles else "")
    assert len(config.get_list("listeners")) == len(roles)
    assert (config.get_str_or_none("ssl.keystore.location") or "") == stores[0]
    assert (config.get_str_or_none("ssl.truststore.location") or "") == stores[1]
    protocols = {endpoint.security_protocol for endpoint in listeners(config)}
    assert protocols == {SecurityProtocol.SSL if stores[0] else SecurityProtocol.PLAINTEXT}
    assert config.get_int("num.partitions") == 1
    assert config.get_int("min.insync.replicas") == (1 if "min.insync.replicas" in more else 2)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_node_listens_where_its_file_says_that_it_is(host):
    """A host of IPv6 was advertised, and the listener was one of IPv4."""
    if host == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no socket for both families")
    voters = parse_voters(f"1@{join_address(host, 9093)}")
    node = NewNode(roles=("broker", "controller"), node_id=1, voters=voters, host=host, port=9092, directories=("/d",))
    config = parse_server_config(configuration_text(node), "node.properties", {})

    async def connect(endpoint):
        network = real_environment().network
        listener = await network.listen(endpoint.host, 0)
        (await network.connect(host, listener.address[1])).close()
        listener.close()

    assert [endpoint.host for endpoint in advertised_listeners(config)] == [host]
    for endpoint in listeners(config):
        trio.run(connect, endpoint)


@pytest.mark.parametrize(
    ("roles", "voters", "replicas"),
    [
        (("broker", "controller"), "1@c1:9093", 1),
        (("broker", "controller"), "1@c1:9093,2@c2:9093,3@c3:9093", 3),
        (("broker",), "101@c1:9093", 3),
    ],
)
def test_a_cluster_of_one_node_has_groups(roles, voters, replicas):
    """Its internal topics were never created: they need three brokers by default."""
    node = NewNode(
        roles=roles, node_id=1, voters=parse_voters(voters), host="b1", port=9092, directories=("/data",), more={}
    )
    config = parse_server_config(configuration_text(node), "node.properties", {})
    minimum = min(2, replicas)
    assert {key: config.get_int(key) for key in INTERNAL_REPLICAS} == {
        key: minimum if key.endswith("min.isr") else replicas for key in INTERNAL_REPLICAS
    }
    assert config.get_int("default.replication.factor") == replicas
    assert config.get_int("min.insync.replicas") == minimum


def test_a_named_listener_between_brokers_needs_no_protocol():
    """Kafka refuses a file that has both keys."""
    more = {"listeners": "INSIDE://:9092", "listener.security.protocol.map": "INSIDE:SASL_SSL,CONTROLLER:SSL"}

    def text(**named):
        voters = parse_voters("101@c1:9093")
        return configuration_text(
            NewNode(
                roles=("broker",),
                node_id=1,
                voters=voters,
                host="b1",
                port=9092,
                directories=("/data",),
                keystore="node.pem",
                more=more | named,
            )
        ).splitlines()

    assert "security.inter.broker.protocol=SSL" in text()
    named = text(**{"inter.broker.listener.name": "INSIDE"})
    assert "inter.broker.listener.name=INSIDE" in named
    assert not any(line.startswith("security.inter.broker.protocol") for line in named)


def test_contradictions_are_named(tmp_path):
    for voters, said in (
        ("101", "expected id@host:port"),
        ("1@a:1,1@b:2", "id 1 is there twice"),
        ("2@127.0.0.1:1", "must have an entry 1@host:port"),
    ):
        _, done = init(tmp_path, "n", "--role", "controller", "--node-id", "1", voters=voters, code=2)
        assert said in done.stderr
    _, done = init(tmp_path, "n", "--role", "broker", "--node-id", "1", voters="1@127.0.0.1:1", code=2)
    assert "a broker needs an id of its own" in done.stderr
    for more, said in (
        (("--truststore", "t.pem"), "--truststore needs --keystore"),
        (("--set", "node.id=3"), "--set node.id: give --node-id instead"),
        (("--set", "min.insync=3"), "min.insync.replicas"),
        (("--set", "nonsense"), "--set: expected KEY=VALUE"),
        (("--cluster-id", ""), "'--cluster-id': it is empty"),
        (("--host", ""), "'--host': it is empty"),
        (("--set", "a=1", "--set", "a=2"), "a is given twice"),
        (("--keystore", "missing.pem"), "missing.pem': cannot be read"),
    ):
        options = ("--role", "controller", "--node-id", "1", *more)
        assert said in init(tmp_path, "n", *options, voters="1@127.0.0.1:1", code=2)[1].stderr
    with pytest.raises(UsageError, match="expected id@host:port"):
        parse_voters("1@host")


@given(
    before=st.integers(0, 10**6), took=st.integers(0, 5_000), offset=st.integers(-(10**6), 10**6), at=st.floats(0, 1)
)
def test_a_clock_offset_is_certain_or_zero(before, took, offset, at):
    """The offset has the true sign, and is never larger than the true one."""
    after = before + took
    leader = before + int(at * took) - offset
    found = clock_offset_ms(before, leader, after)
    assert abs(found) <= abs(offset)
    assert abs(offset) - abs(found) <= took
    assert found == 0 or (found > 0) == (offset > 0)


def test_directories_of_two_clusters_are_found(tmp_path):
    """The file names no cluster; each directory by itself looks right."""
    file = tmp_path / "n.properties"
    directories = [option for name in ("d1", "d2") for option in ("--dir", str(tmp_path / name))]
    (port,) = take_free_ports(1)
    options = ("--role", "broker", "--node-id", "2", "--host", "127.0.0.1", "--port", str(port), *directories)
    run_command("node", "init", str(file), *options, "--voters", f"101@127.0.0.1:{port}")
    for name, cluster_id in (("d1", "one"), ("d2", "two")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "meta.properties").write_text(
            f"version=1\nnode.id=2\ncluster.id={cluster_id}\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAQ\n"
        )
    done = run_command("node", "check", str(file), "--json")
    rows = [row for row in json.loads(done.stdout)["checks"] if row["check"] == "identity"]
    assert [(row["state"], row["detail"]) for row in rows] == [
        ("ok", "node 2 of cluster one"),
        ("problem", "belongs to node 2 of cluster two"),
    ]
    assert done.returncode == 1


def test_any_directory_shows_a_voter_of_another_cluster(tmp_path, monkeypatch):
    """The first directory that knows a cluster counts; one that is missing, new or damaged hides no other."""

    async def answers(*_):
        await trio.lowlevel.checkpoint()
        return {101: QuorumView(leader_id=-1, cluster_id="other", addresses={})}

    monkeypatch.setattr(checks, "ask_voters", answers)
    kinds = {"missing": None, "new": b"cluster.id=\n", "damaged": b"\xff", "own": b"cluster.id=own\n"}
    kinds["other"] = b"cluster.id=other\n"
    for number, held in enumerate(product(kinds, repeat=3)):
        directories = [tmp_path / f"{number}-{at}" for at in range(3)]
        for directory, kind in zip(directories, held, strict=True):
            directory.mkdir()
            if kinds[kind] is not None:
                (directory / "meta.properties").write_bytes(kinds[kind])
        file = f"process.roles=broker\nnode.id=2\nlog.dirs={','.join(map(str, directories))}\n"
        file += "controller.quorum.voters=101@127.0.0.1:1\ncontroller.listener.names=CONTROLLER\n"
        config = parse_server_config(file, "node.properties", {})
        (found,) = trio.run(checks.check_quorum, real_environment(), config)
        knows = next((at for at, kind in enumerate(held) if kind in ("own", "other")), None)
        if knows is not None and held[knows] == "own":
            assert (found.state, held) == (checks.PROBLEM, held)
            assert found.detail == f"belongs to cluster other, but {directories[knows]} to cluster own"
        else:
            assert (found.state, held) == (checks.OK, held)


def test_format_refuses_foreign_directories(tmp_path):
    """Nothing is written when one of the directories belongs to others."""
    port, other = take_free_ports(2)
    file, _ = init(
        tmp_path, "n", "--role", "both", "--node-id", "1", "--port", str(port), voters=f"1@127.0.0.1:{other}"
    )
    data = tmp_path / "n"

    def formatted(*more, code=0):
        done = run_command("node", "format", str(file), *more, "--json")
        assert done.returncode == code, done
        return done

    assert "no cluster id" in formatted(code=2).stderr
    data.mkdir()
    (data / "thesis.tex").write_text("x")
    assert "holds thesis.tex: give the node an empty directory" in formatted("--cluster-id", CLUSTER, code=2).stderr
    assert sorted(one.name for one in data.iterdir()) == ["thesis.tex"]
    (data / "thesis.tex").unlink()
    rows = json.loads(formatted("--cluster-id", CLUSTER).stdout)["directories"]
    assert [row["state"] for row in rows] == ["formatted", "formatted"]
    assert f"cluster.id={CLUSTER}" in (data / "meta.properties").read_text()
    assert f"cluster.id={CLUSTER}" in (data / "__cluster_metadata" / "meta.properties").read_text()
    rows = json.loads(formatted("--cluster-id", CLUSTER).stdout)["directories"]
    assert [row["state"] for row in rows] == ["unchanged", "unchanged"]
    identity = data / "__cluster_metadata" / "meta.properties"
    identity.write_text(identity.read_text().replace(f"cluster.id={CLUSTER}", "cluster.id="))
    rows = json.loads(formatted("--cluster-id", CLUSTER).stdout)["directories"]
    assert [row["state"] for row in rows] == ["unchanged", "cluster id added"], "a start without the id had made it"
    assert f"cluster.id={CLUSTER}" in identity.read_text()
    shutil.rmtree(data / "__cluster_metadata")
    assert "this is cluster 'other'" in formatted("--cluster-id", "other", code=2).stderr
    assert not (data / "__cluster_metadata").exists()
    file.write_text(file.read_text() + f"cluster.id={CLUSTER}\n")
    assert "contradicts cluster.id" in formatted("--cluster-id", "other", code=2).stderr


@pytest.mark.parametrize("is_marked", [False, True])
def test_format_by_root_for_another_user_is_warned_of(tmp_path, monkeypatch, is_marked):
    """The server of that user could not open the lock; in a container root often runs the server itself."""
    port, other = take_free_ports(2)
    options = ("--role", "both", "--node-id", "1", "--port", str(port), "--cluster-id", CLUSTER)
    file, _ = init(tmp_path, "a/n", *options, voters=f"1@127.0.0.1:{other}")
    owners = {tmp_path / "a": 4242}
    monkeypatch.setattr(format_module, "CONTAINER_MARKS", (str(file),) if is_marked else ())
    monkeypatch.setattr(format_module, "owner_of", lambda path: owners.get(path, 0))
    monkeypatch.setattr(format_module.os, "geteuid", lambda: 0)
    place = tmp_path / "a" / "n"
    warned = f"root owns the new files in a place of user 4242; if 4242 runs the node: chown -R 4242 {place}\n"
    done = run_command("node", "format", str(file))
    assert done.stderr == ("" if is_marked else f"moldau: {warned}")
    assert run_command("node", "format", str(file)).stderr == "", "nothing was made"
    if not is_marked:
        monkeypatch.setattr(format_module.os, "geteuid", lambda: 4242)
        shutil.rmtree(place)
        assert run_command("node", "format", str(file)).stderr == ""
        monkeypatch.setattr(format_module.os, "geteuid", lambda: 0)
        shutil.rmtree(place)
        owners.clear()
        assert run_command("node", "format", str(file)).stderr == ""


def test_a_file_is_not_named_like_toml(tmp_path):
    """The error said that the file, which did not exist, is not TOML."""
    options = ("--role", "controller", "--node-id", "1", "--voters", "1@127.0.0.1:1")
    done = run_command("node", "init", str(tmp_path / "n.toml"), *options)
    assert done.returncode == 2
    assert done.stderr.endswith("n.toml: init writes Java properties; name the file n.properties\n")
    assert list(tmp_path.iterdir()) == []


def test_a_file_with_a_secret_is_closed_to_others(tmp_path):
    """Each user of the machine could read a password that was given with --set."""
    port, voter = take_free_ports(2)
    (tmp_path / "secrets").write_text("key=hidden\n")
    options = ("--role", "broker", "--node-id", "1", "--port", str(port))

    def written(name, *more):
        file, done = init(tmp_path, name, *options, *more, voters=f"101@127.0.0.1:{voter}")
        return stat.S_IMODE(file.stat().st_mode), done.stderr

    before = os.umask(0o022)
    try:
        secret = ("--set", "listener.name.plaintext.plain.sasl.jaas.config=PlainLoginModule required password=x;")
        mode, note = written("a", *secret)
        assert mode == 0o600
        assert note == (
            f"moldau: {tmp_path / 'a'}.properties holds a secret, so only its owner may read it; "
            f"if another user runs the node: chown USER {tmp_path / 'a'}.properties\n"
        )
        reference = ("--set", f"ssl.key.password=${{file:{tmp_path / 'secrets'}:key}}")
        assert written("b", *reference) == (0o644, "")
        assert written("b", *secret, "--force") == (0o600, note.replace(f"{tmp_path / 'a'}", f"{tmp_path / 'b'}"))
        (tmp_path / "b.properties").chmod(0o640)
        assert written("b", *secret, "--force") == (0o640, "")
    finally:
        os.umask(before)


def test_check_finds_what_is_wrong_with_the_machine(tmp_path):
    port, other = take_free_ports(2)
    file, done = init(
        tmp_path, "n", "--role", "controller", "--node-id", "1", voters=f"1@127.0.0.1:{port},2@127.0.0.1:{other}"
    )
    assert findings(done)["voter", "warning"] == "no answer: Connection refused"
    (tmp_path / "n").write_text("a file")
    done = run_command("node", "check", str(file), "--json")
    assert done.returncode == 1
    assert findings(done)["directory", "problem"] == f"{tmp_path / 'n'} is not a directory"
    assert (
        "exists; --force replaces it"
        in init(tmp_path, "n", "--role", "controller", "--node-id", "1", voters="1@a:1", code=2)[1].stderr
    )


def test_the_check_reads_certificates(tmp_path):
    """A node with these files would not start."""
    stores = [tmp_path / "node.pem", tmp_path / "trust.pem"]
    for store in stores:
        store.write_text("no certificate")
    (port,) = take_free_ports(1)
    options = ("--role", "broker", "--node-id", "1", "--host", "127.0.0.1", "--port", str(port))
    file, _ = init(tmp_path, "n", *options, voters="101@127.0.0.1:1")
    text = (
        file.read_text()
        + "security.inter.broker.protocol=SSL\nssl.keystore.location={}\nssl.truststore.location={}\n".format(*stores)
    )
    file.write_text(text.replace("PLAINTEXT", "SSL"))
    done = run_command("server", str(file), "--check")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"moldau: {file}: ssl.truststore.location: ")


@pytest.mark.parametrize(
    ("role", "url", "more", "state", "detail"),
    [
        ("broker", "file://{store}", "", "ok", "answers"),
        ("broker", "file://{store}/away", "", "problem", "; mount it, or make it"),
        (
            "broker",
            "s3://bucket",
            "endpoint.url=http://127.0.0.1:1",
            "problem",
            "correct remote.log.storage.s3.endpoint",
        ),
        ("controller", "file://{store}/away", "", None, ""),
    ],
)
def test_the_check_asks_the_object_store(tmp_path, role, url, more, state, detail):
    """Without an answer the brokers would start, and copy nothing."""
    (port,) = take_free_ports(1)
    options = ("--role", role, "--node-id", "1", "--host", "127.0.0.1", "--port", str(port))
    file, _ = init(tmp_path, "n", *options, voters=f"1@127.0.0.1:{port}" if role == "controller" else "101@127.0.0.1:1")
    store = tmp_path / "store"
    store.mkdir()
    keys = ["remote.log.storage.system.enable=true", f"remote.log.storage.url={url.format(store=store)}"]
    if more:
        keys += [f"remote.log.storage.s3.{key}" for key in (more, "access.key.id=a", "secret.access.key=b", "region=r")]
    file.write_text("\n".join([file.read_text(), *keys, ""]))
    done = run_command("node", "check", str(file), "--json")
    assert done.returncode == (1 if state == "problem" else 0), done
    found = {one["state"]: one["detail"] for one in json.loads(done.stdout)["checks"] if one["check"] == "object store"}
    assert list(found) == [state] * (state is not None)
    assert detail in found.get(state, "")
    assert list(store.iterdir()) == [], "a check changes nothing"


@pytest.mark.parametrize(("days", "state"), [(-1, "problem"), (5, "warning"), (200, "ok")])
def test_the_check_says_when_certificates_expire(tmp_path, days, state):
    """Such a node starts, but no peer accepts its certificate after that day."""
    ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    chain, key = authority().issue("127.0.0.1", not_after=ends)
    (tmp_path / "node.pem").write_text(key + chain)
    (tmp_path / "trust.pem").write_text(authority().trust)
    stores = ("--keystore", str(tmp_path / "node.pem"), "--truststore", str(tmp_path / "trust.pem"))
    port, voter = take_free_ports(2)
    options = ("--role", "broker", "--node-id", "1", "--host", "127.0.0.1", "--port", str(port), *stores)
    _, done = init(tmp_path, "n", *options, voters=f"101@127.0.0.1:{voter}", code=int(state == "problem"))
    detail = findings(done)["certificate", state]
    assert detail == f"{'expired' if days < 0 else 'expires'} at {ends:%Y-%m-%d %H:%M:%S} UTC"


def test_the_check_names_a_certificate_of_the_future(tmp_path):
    """It said ok, although no peer accepts such a certificate: a clock of the two machines is wrong."""
    begin = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    chain, key = authority().issue("127.0.0.1", not_before=begin)
    (tmp_path / "node.pem").write_text(key + chain)
    (tmp_path / "trust.pem").write_text(authority().trust)
    stores = ("--keystore", str(tmp_path / "node.pem"), "--truststore", str(tmp_path / "trust.pem"))
    port, voter = take_free_ports(2)
    options = ("--role", "broker", "--node-id", "1", "--host", "127.0.0.1", "--port", str(port), *stores)
    _, done = init(tmp_path, "n", *options, voters=f"101@127.0.0.1:{voter}", code=1)
    assert f"is not valid before {begin:%Y-%m-%d %H:%M:%S} UTC" in findings(done)["certificate", "problem"]


@pytest.mark.parametrize("versions", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize(
    ("names", "host", "is_named"),
    [
        (("b1.example",), "b1.example", True),
        (("*.a.example",), "b1.a.example", True),
        (("b2.example",), "b1.example", False),
        (("127.0.0.1",), "127.0.0.1", True),
        (("127.0.0.2",), "127.0.0.1", False),
    ],
)
def test_the_check_says_whose_certificate_it_is(tmp_path, names, host, is_named, versions):
    """A node starts with the certificate of another one; then clients and the other brokers refuse it."""
    chain, key = authority().issue(*names)
    (tmp_path / "node.pem").write_text(key + chain)
    (tmp_path / "trust.pem").write_text(authority().trust)
    stores = ("--keystore", str(tmp_path / "node.pem"), "--truststore", str(tmp_path / "trust.pem"))
    port, voter = take_free_ports(2)
    both = f"101@{host}:{voter}"
    more = ("--set", f"ssl.enabled.protocols={versions}", "--set", "ssl.client.auth=required")
    for role, node, options in (("broker", 1, ("--host", host, "--port", str(port))), ("controller", 101, ())):
        options = ("--role", role, "--node-id", str(node), *options, *stores, *more)
        _, done = init(tmp_path, role, *options, voters=both)
        said = findings(done).get(("certificate", "warning"))
        wrong = f"does not name {host}, the host that others connect to: they refuse it"
        assert said == (None if is_named else wrong), role
        _, done = init(
            tmp_path, role, *options, "--set", "ssl.endpoint.identification.algorithm=", "--force", voters=both
        )
        assert ("certificate", "warning") not in findings(done)


def test_the_next_step_after_init_can_be_typed(tmp_path):
    """Format needs the id of the cluster, which the file has only if it was given, or if a voter answered."""
    voter, port = take_free_ports(2)
    options = ["node", "init", "--role", "broker", "--node-id", "1", "--voters", f"101@127.0.0.1:{voter}"]
    options += ["--port", str(port), "--dir", str(tmp_path / "data")]
    done = run_command(*options, str(tmp_path / "a"))
    then = "; then, as the user that runs the node: moldau node format"
    assert f"{then} {tmp_path / 'a'} --cluster-id ID (moldau node cluster-id" in done.stderr
    done = run_command(*options, str(tmp_path / "b"), "--cluster-id", CLUSTER)
    assert f"{then} {tmp_path / 'b'}\n" in done.stderr


@pytest.mark.processes
def test_a_prepared_node_starts_and_knows_its_cluster(tmp_path):
    """A formatted node serves; another node learns the cluster id from it, and sees its port, clock and cluster."""
    controller, broker, second = take_free_ports(3)
    voters = f"101@127.0.0.1:{controller}"
    file, _ = init(
        tmp_path, "a", "--role", "both", "--node-id", "101", "--host", "127.0.0.1", "--port", str(broker), voters=voters
    )
    assert run_command("node", "format", str(file), "--cluster-id", CLUSTER).returncode == 0
    log = tmp_path / "log"
    with log.open("wb") as written:
        node = Command("server", str(file), "--with-parent", "--log-format", "json", stderr=written)
        try:
            wait_until(lambda: '"event": "ready"' in log.read_text(), "the node serves")
            options = ("--role", "broker", "--node-id", "2", "--host", "127.0.0.1", "--port", str(second))
            other, done = init(tmp_path, "b", *options, voters=voters)
            assert f"\ncluster.id={CLUSTER}\n" in other.read_text()
            found = findings(done)
            assert found["port", "ok"] == "free"
            assert found["voter", "ok"] == f"cluster {CLUSTER}, leader 101"
            assert found["clock", "ok"] == "agrees with the leader"
            done = run_command("node", "check", str(file), "--json")
            assert done.returncode == 1
            assert findings(done)["port", "problem"] == "cannot listen: Address already in use, by this node if it runs"
            other.write_text(other.read_text().replace(CLUSTER, "other"))
            done = run_command("node", "check", str(other), "--json")
            assert "but cluster.id is other" in findings(done)["voter", "problem"]
            # The directory of another cluster, as a wrong mount brings it, in a node whose file names no cluster.
            other.write_text(other.read_text().replace("\ncluster.id=", "\n#cluster.id="))
            (tmp_path / "b").mkdir()
            (tmp_path / "b" / "meta.properties").write_text("version=1\nnode.id=2\ncluster.id=foreign\n")
            done = run_command("node", "check", str(other), "--json")
            said = findings(done)["voter", "problem"]
            assert said == f"belongs to cluster {CLUSTER}, but {tmp_path / 'b'} to cluster foreign"
            assert run_command("node", "format", str(file), "--cluster-id", CLUSTER).returncode != 0
        finally:
            node.terminate()
            assert node.wait(timeout=30) == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert lines[-1]["event"] == "stopped"
    assert all(line.keys() >= {"time", "level", "logger", "event"} for line in lines)


@pytest.mark.processes
def test_init_asks_voters_over_tls(tmp_path):
    """A controller requires certificates: init with the node's own learns the cluster id, without one it does not."""
    chain, key = authority().issue("127.0.0.1")
    (tmp_path / "node.pem").write_text(key + chain)
    (tmp_path / "trust.pem").write_text(authority().trust)
    stores = ("--keystore", str(tmp_path / "node.pem"), "--truststore", str(tmp_path / "trust.pem"))
    controller, second = take_free_ports(2)
    voters = f"101@127.0.0.1:{controller}"
    file, _ = init(
        tmp_path, "a", "--role", "controller", "--node-id", "101", "--cluster-id", CLUSTER, *stores, voters=voters
    )
    log = tmp_path / "log"
    with log.open("wb") as written:
        node = Command("server", str(file), "--with-parent", stderr=written)
        try:
            wait_until(lambda: " ready " in log.read_text(), "the node serves")
            options = ("--role", "broker", "--node-id", "2", "--host", "127.0.0.1", "--port", str(second))

            def is_known():
                joined, _ = init(tmp_path, "b", *options, *stores, "--force", voters=voters)
                return f"\ncluster.id={CLUSTER}\n" in joined.read_text()

            wait_until(is_known, "the first leader's records have the cluster id")
            _, done = init(tmp_path, "b", *options, *stores, "--force", voters=voters)
            assert findings(done)["voter", "ok"] == f"cluster {CLUSTER}, leader 101"
            assert findings(done)["clock", "ok"] == "agrees with the leader"
            plain, done = init(tmp_path, "c", *options, voters=voters)
            assert "\n#cluster.id=" in plain.read_text()
            assert "no answer" in findings(done)["voter", "warning"]
        finally:
            node.terminate()
            assert node.wait(timeout=30) == 0


def test_a_voter_that_cannot_be_asked_has_a_reason(tmp_path):
    """The system's number of a failed handshake is that of any protocol error."""
    chain, key = authority().issue("127.0.0.1")
    (tmp_path / "node.pem").write_text(key + chain)
    (tmp_path / "other.pem").write_text(authority(1).trust)
    stores = ("--keystore", str(tmp_path / "node.pem"))
    trusts = ("--truststore", str(tmp_path / "other.pem"))
    secure = ListenerTls(authority().settings("127.0.0.1"), real_environment().disk)
    with cluster(secure) as fake:
        port, closed = take_free_ports(2)
        voters = f"101@{fake.bootstrap},102@no-such-host.invalid:9093,103@127.0.0.1:{closed}"
        options = ("--role", "broker", "--node-id", "1", "--host", "127.0.0.1", "--port", str(port), *stores, *trusts)
        _, done = init(tmp_path, "n", *options, voters=voters)
    rows = json.loads(done.stdout)["checks"]
    said = [row["detail"] for row in rows if row["check"] == "voter"]
    words = (
        "TLS handshake failed: CERT",
        "host name 'no-such-host.invalid' cannot be",
        "no answer: Connection refused",
    )
    assert [each in one for each, one in zip(words, said, strict=True)] == [True] * 3, said


def test_the_unit_is_valid(tmp_path):
    """systemd accepts the unit; the paths of an installation are replaced by those of this one."""
    systemd = shutil.which("systemd-analyze")
    if systemd is None:
        pytest.skip("systemd-analyze is not installed")
    text = UNIT.read_text()
    assert "Type=notify" in text
    moldau = Path(sys.executable).with_name("moldau")
    text = text.replace("/opt/moldau/bin/moldau", str(moldau if moldau.exists() else sys.executable))
    unit = tmp_path / "moldau@broker.service"
    unit.write_text(text.replace("User=moldau", "User=root").replace("Group=moldau", "Group=root"))
    done = subprocess.run([systemd, "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_systemd_never_gives_a_node_up():
    """Five starts a minute were the limit, which a node whose port is in use reaches in ten seconds."""
    keys = dict(line.split("=", 1) for line in UNIT.read_text().splitlines() if "=" in line and line[0] not in "#[")
    assert (keys["Restart"], keys["RestartPreventExitStatus"]) == ("always", "2")
    assert keys["StartLimitIntervalSec"] == "0", "any other value, and systemd's default, stops the restarts"
