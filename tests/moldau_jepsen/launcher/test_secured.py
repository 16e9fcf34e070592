"""Goal: a secured local cluster is closed from its first moment, and its files hold no secret that others may read.

Method: the launcher's files are written without nodes, read back by the nodes' own parsers, and used in a TLS
handshake in memory. ``tests/interop/test_secured_cluster.py`` starts one.
"""

from __future__ import annotations

import datetime
import json
import ssl
from pathlib import Path

import pytest
from cryptography import x509

from moldau.runtime.config import ADMIN_CONFIG, parse_config_text, parse_server_config
from moldau.runtime.config.sasl import bootstrap_credentials, client_login, controller_login, inter_broker_login
from moldau.runtime.config.tls import tls_settings
from moldau.runtime.ports.real import real_environment
from moldau.runtime.tls.context import client_context, server_context
from moldau_jepsen.launcher.secured import SECRETS, SecuredFiles, make_certificates, secured_properties, write_files
from moldau_jepsen.launcher.spec import ClusterSpec, Node, from_json, node_properties, plan_nodes, to_json


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    directory = tmp_path_factory.mktemp("secured")
    nodes = plan_nodes(ClusterSpec(brokers=1, controllers=1, secure=True), directory, [20000, 20001])
    files = SecuredFiles(directory)
    for node in nodes:
        Path(node.directory).mkdir(parents=True)
    write_files(nodes, files)
    for node in nodes:
        text = node_properties(node, nodes, secured_properties(node, files, files.reference))
        Path(node.config).write_text(text, encoding="utf-8")
    return files, nodes


def config_of(node):
    return parse_server_config(Path(node.config).read_text(encoding="utf-8"), node.config, {})


def test_nodes_and_administrator_agree_on_passwords(written):
    files, (broker, controller) = written
    first, second = config_of(broker), config_of(controller)
    credentials = {each.user: each.password for each in bootstrap_credentials(second)}
    login = client_login(ADMIN_CONFIG.parse(parse_config_text(files.client.read_text(), str(files.client))))
    assert (login.user, login.password) == ("admin", credentials["admin"])
    between = inter_broker_login(first)
    assert (between.user, between.password) == ("broker", credentials["broker"])
    assert controller_login(second).user == "controller"
    assert controller_login(first).user == "broker"
    assert len({*credentials.values(), controller_login(second).password}) == 3
    assert first.get_str("super.users") == "User:admin;User:broker;User:controller"
    assert not first.get_bool("allow.everyone.if.no.acl.found")


def test_secrets_are_for_their_owner_only(written):
    """No file that others may read holds a password or a key; the nodes' files refer to them."""
    files, nodes = written
    found = parse_config_text(files.secrets.read_text(), str(files.secrets))
    assert sorted(found) == sorted(SECRETS)
    private = {files.client, files.secrets, files.directory / "client-java.properties", *map(files.key, nodes)}
    for path in files.directory.rglob("*"):
        if path.is_dir():
            continue
        if path in private:
            assert path.stat().st_mode & 0o777 == 0o600, path
        else:
            text = path.read_text()
            assert "PRIVATE KEY" not in text
            assert not any(secret in text for secret in found.values()), path


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_certificates_satisfy_the_clients_check(written, host):
    """A client that knows only the authority trusts a node under both names, and no other host."""
    files, (broker, _) = written
    disk = real_environment().disk
    client = ADMIN_CONFIG.parse(parse_config_text(files.client.read_text(), str(files.client)))
    server = server_context(tls_settings(config_of(broker), "SASL_SSL"), disk)
    shake_hands(client_context(tls_settings(client), disk), server, host)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(client_context(tls_settings(client), disk), server, "127.0.0.2")


def shake_hands(client, server, host):
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert ends[0].getpeercert()


def test_the_cluster_file_names_the_login(written):
    files, nodes = written
    document = json.loads(to_json(nodes, str(files.client)))
    assert document["client_config"] == str(files.client)
    assert from_json(json.dumps(document), "here") == nodes
    assert "client_config" not in json.loads(to_json(nodes))


def test_certificates_are_valid_for_ten_years(tmp_path):
    """From an hour ago on, because clocks differ: a cluster that is kept must start again after a long time."""
    node = Node(node_id=1, role="broker", port=1, directory="", config="", log="")
    trust, issued = make_certificates([node])
    now = datetime.datetime.now(datetime.UTC)
    for pem in (trust, issued[1]):
        (certificate,) = x509.load_pem_x509_certificates(pem)
        valid = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        assert valid[0] <= now - datetime.timedelta(minutes=59)
        assert valid[1] >= now + datetime.timedelta(days=3649)
