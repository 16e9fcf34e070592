"""Goal: a node warns of files with secrets that every user of the machine may read. Method: files with modes."""

from __future__ import annotations

from moldau.runtime.config import parse_server_config
from moldau_cli.nodes.server import open_files

NODE = """process.roles=broker
node.id=1
listeners=PLAINTEXT://127.0.0.1:9092
controller.quorum.voters=101@127.0.0.1:9093
controller.listener.names=CONTROLLER
log.dirs=/data
"""


def test_secrets_that_all_may_read_are_named(tmp_path) -> None:
    """The configuration file counts only if it holds a secret itself; references name the other files."""
    secrets, key, config = tmp_path / "secrets", tmp_path / "node.pem", tmp_path / "node.properties"
    secrets.write_text("scram=one\n")
    key.write_text("key")
    lines = f"sasl.scram.decoy.secret=${{file:{secrets}:scram}}\nssl.keystore.location={key}\n"

    def found(text: str, *, mode: int) -> list[str]:
        config.write_text(NODE + text)
        for path in (secrets, key, config):
            path.chmod(mode)
        return open_files(parse_server_config(config.read_text(), str(config), {}), str(config))

    assert found(lines, mode=0o600) == []
    assert found(lines, mode=0o640) == [], "a group may be meant to read"
    assert found(lines, mode=0o644) == [str(secrets), str(key)]
    assert found("delegation.token.secret.key=plain\n", mode=0o644) == [str(config)]
    assert found("", mode=0o644) == []

    jaas = "listener.name.plaintext.plain.sasl.jaas.config=PlainLoginModule required username=a password={} user_a={};"
    looked_up = f'"${{file:{secrets}:scram}}"'
    assert found(jaas.format(looked_up, looked_up), mode=0o644) == [str(secrets)]
    assert found(jaas.format(looked_up, "plain"), mode=0o644) == [str(secrets), str(config)], "one password is text"
