"""Goal: a node exports its metrics over HTTP, and the dashboard and alert rules ask only for exported ones.
Method: a real process that is broker and controller, a real client, and real scrapes.
"""

import json
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Producer

from moldau.blocking import Admin, Consumer, ShareConsumer
from moldau.protocol.errors import KafkaError
from moldau_jepsen.launcher.ports import take_free_ports
from support.certificates import authority
from support.interop.clients import WAIT_S, ConfluentClient, create_topic, wait_until
from support.started import STDOUT, Command

pytestmark = pytest.mark.processes

DEPLOY = Path(__file__).parents[2] / "deploy"
METRIC = re.compile(r"\b(?:kafka|moldau|process)_[a-z0-9_]+\b")
CLIENTS = ("--entity-type", "client-metrics", "--entity-name", "producers")
LABELS = re.compile(r"\{[^}]*\}")


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    home = tmp_path_factory.mktemp("node")
    broker, secured, login, controller, metrics = take_free_ports(5)
    chain, key = authority().issue("127.0.0.1")
    (home / "node.pem").write_text(key + chain)
    (home / "store").mkdir()
    config = home / "server.properties"
    config.write_text(
        f"""process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},SSL://127.0.0.1:{secured},LOGIN://127.0.0.1:{login},CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,LOGIN:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.login.sasl.jaas.config=PlainLoginModule required user_alice="right";
ssl.keystore.type=PEM
ssl.keystore.location={home}/node.pem
metrics.listener=127.0.0.1:{metrics}
log.dirs={home}/data
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
log.flush.interval.messages=1
remote.log.storage.system.enable=true
remote.log.storage.url=file://{home}/store
"""
    )
    with (home / "log").open("wb") as log:
        process = Command("server", str(config), stdout=log, stderr=STDOUT)
    process.bootstrap = f"127.0.0.1:{broker}"
    process.secured_port, process.login = secured, f"127.0.0.1:{login}"
    process.url = f"http://127.0.0.1:{metrics}"
    process.log = home / "log"
    try:
        wait_until(lambda: _is_ready(process), "the node is ready")
        yield process
    finally:
        process.kill()
        process.wait()


def _is_ready(process):
    assert process.poll() is None, process.log.read_text()
    try:
        return get(process, "/health/ready")[0] == 200
    except OSError:
        return False


def get(process, path, method="GET"):
    request = urllib.request.Request(process.url + path, method=method)
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def scrape(process):
    """Returns all samples by their names with labels."""
    status, text = get(process, "/metrics")
    assert status == 200
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def asked_for(deploy):
    """Returns the names of all metrics in the dashboard and in the alert rules."""
    dashboard = json.loads((deploy / "grafana" / "moldau.json").read_text())
    rules = yaml.safe_load((deploy / "prometheus" / "alerts.yml").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [variable["query"] for variable in dashboard["templating"]["list"]]
    asked += [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    return {name for expression in asked for name in METRIC.findall(LABELS.sub("", expression))}


@pytest.fixture(scope="module")
def traffic(node):
    create_topic(node.bootstrap, "seen", 1, 1)
    client = ConfluentClient(node.bootstrap)
    client.produce("seen", [(b"k", b"%d" % number, []) for number in range(10)])
    assert len(client.consume("seen", 1, 10)) == 10
    return node


def test_dashboard_and_alerts_ask_for_exported_metrics(traffic):
    exported = {name.partition("{")[0] for name in scrape(traffic)}
    asked = asked_for(DEPLOY)
    assert len(asked) > 30
    assert sorted(asked - exported) == []


def test_traffic_counts_by_topic_and_in_sum(traffic):
    samples = scrape(traffic)
    prefix = "kafka_server_brokertopicmetrics_"
    assert samples[prefix + 'messagesin_total{topic="seen"}'] == 10
    assert samples[prefix + 'messagesin_total{topic=""}'] >= 10
    assert samples[prefix + 'bytesin_total{topic="seen"}'] > 10
    assert samples[prefix + 'bytesout_total{topic="seen"}'] >= samples[prefix + 'bytesin_total{topic="seen"}']
    assert samples['kafka_log_log_logendoffset{topic="seen",partition="0"}'] == 10


def test_failed_tls_handshakes_count_as_refused_logins(traffic):
    name = 'kafka_server_socketservermetrics_failed_authentication_total{listener="SSL",mechanism="SSL"}'
    assert scrape(traffic)[name] == 0
    with socket.create_connection(("127.0.0.1", traffic.secured_port), WAIT_S):
        pass  # a probe that leaves without a word
    with socket.create_connection(("127.0.0.1", traffic.secured_port), WAIT_S) as peer:
        peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert peer.recv(1) == b"\x15", "a TLS alert"
    wait_until(lambda: scrape(traffic)[name] == 1, "the handshake is counted")


def test_logins_are_counted(traffic):
    prefix = "kafka_server_socketservermetrics_"

    def counts():
        samples = scrape(traffic)
        labels = '{listener="LOGIN",mechanism="PLAIN"}'
        return [samples[f"{prefix}{kind}_authentication_total{labels}"] for kind in ("successful", "failed")]

    accepted, refused = counts()
    client = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "alice"}
    with Admin({"bootstrap.servers": traffic.login, "sasl.password": "right", **client}) as admin:
        admin.describe_cluster()
    with (
        pytest.raises(KafkaError, match="Invalid username or password"),
        Admin({"bootstrap.servers": traffic.login, "sasl.password": "wrong", **client}) as admin,
    ):
        admin.describe_cluster()
    assert counts()[0] > accepted
    assert counts()[1] > refused


def test_requests_have_counts_and_times(traffic):
    samples = scrape(traffic)
    produced = [value for name, value in samples.items() if 'requests_total{request="Produce"' in name]
    assert sum(produced) >= 1
    assert samples['kafka_network_requestmetrics_totaltimems_count{request="Produce"}'] == sum(produced)
    assert samples["kafka_log_logflushstats_logflushrateandtimems_count"] >= 1
    assert samples["moldau_metadata_log_sync_ms_count"] >= 1
    assert samples["moldau_event_loop_lag_ms_count"] >= 1


def test_groups_count_by_protocol_and_state(traffic):
    """One empty group of each protocol, and a share group with a member."""
    brokers = {"bootstrap.servers": traffic.bootstrap}
    for protocol in ("classic", "consumer"):
        settings = {**brokers, "group.id": f"of-{protocol}", "group.protocol": protocol}
        with Consumer({**settings, "auto.offset.reset": "earliest"}) as consumer:
            consumer.subscribe(["seen"])
            wait_until(lambda one=consumer: one.poll(500), "the group is given records")
            consumer.commit()
    with ShareConsumer({**brokers, "group.id": "of-shares"}) as sharing:
        sharing.subscribe(["seen"])

        def counted():
            sharing.poll(100)
            samples = scrape(traffic)
            return {name: value for name, value in samples.items() if "group_coordinator_metrics" in name}

        prefix = "kafka_server_group_coordinator_metrics_"
        stable = prefix + 'share_group_count{state="Stable"}'
        wait_until(lambda: counted().get(stable) == 1, "the share group has a member")
        assert counted() == {
            prefix + 'group_count{protocol="classic"}': 1,
            prefix + 'group_count{protocol="consumer"}': 1,
            prefix + 'group_count{protocol="share"}': 1,
            prefix + 'group_count{protocol="streams"}': 0,
            prefix + 'classic_group_count{state="Empty"}': 1,
            prefix + 'consumer_group_count{state="Empty"}': 1,
            stable: 1,
            prefix + 'num_partitions{state="active"}': 50,
            prefix + 'num_partitions{state="loading"}': 0,
        }


def test_roles_and_process_are_described(traffic):
    samples = scrape(traffic)
    assert samples["kafka_controller_kafkacontroller_activecontrollercount"] == 1
    assert samples["kafka_server_replicamanager_leadercount"] >= 1
    assert samples["kafka_server_replicamanager_underreplicatedpartitions"] == 0
    assert samples["process_resident_memory_bytes"] > 1 << 20
    assert 0 < samples["process_open_fds"] < samples["process_max_fds"]


def test_metrics_that_clients_push_are_shown(node):
    """librdkafka pushes by default; a subscription says what and how often."""
    settings = {
        "metrics": "org.apache.kafka.producer.connection.",
        "interval.ms": "200",
        "match": "client_id=pushing-.*,client_software_name=confluent-kafka-python",
    }
    changes = [word for item in settings.items() for word in ("--add-config", "=".join(item))]
    subprocess.run(
        [
            sys.executable,
            "-m",
            "moldau_cli",
            "configs",
            "alter",
            *CLIENTS,
            *changes,
            "--bootstrap-server",
            node.bootstrap,
        ],
        check=True,
        timeout=WAIT_S,
    )
    pushing, silent = (
        Producer({"bootstrap.servers": node.bootstrap, "client.id": name}) for name in ("pushing-1", "silent")
    )
    wanted = 'org_apache_kafka_producer_connection_creation_total{client_id="pushing-1",client_instance_id="'

    def shown():
        pushing.poll(0)
        silent.poll(0)
        return [name for name in scrape(node) if name.startswith(wanted)]

    wait_until(shown, "the pushed metric is shown")
    samples = scrape(node)
    assert re.fullmatch(re.escape(wanted) + r'[\w-]{22}"\}', shown()[0])
    assert samples["kafka_server_client_metrics_plugin_export_total"] >= 1
    assert not [name for name in samples if name.startswith("org_apache") and 'client_id="silent"' in name]
    assert samples["kafka_server_client_metrics_instance_count"] >= 2
    assert samples["kafka_server_client_metrics_plugin_error_total"] == 0
    for producer in (pushing, silent):
        producer.flush(WAIT_S)


def test_health_and_refusals(traffic):
    assert get(traffic, "/health/live")[0] == 200
    assert get(traffic, "/health/ready") == (200, "broker: ready\ncontroller: ready\n")
    assert get(traffic, "/secrets")[0] == 404
    assert get(traffic, "/metrics", "POST")[0] == 405
    assert get(traffic, "/metrics", "HEAD") == (200, "")
