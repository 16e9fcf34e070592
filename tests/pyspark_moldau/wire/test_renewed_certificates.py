"""Goal: connections of a query that runs for months use the certificates that its files hold now.

Method: the context of a new connection, before and after its files are replaced.
"""

from moldau.runtime.tls import reloading
from pyspark_moldau.source.core.options import parse_options
from pyspark_moldau.wire.connections import tls_context
from support.certificates import authority


def test_a_new_connection_uses_renewed_files(tmp_path, monkeypatch):
    monkeypatch.setattr(reloading, "CHECK_MS", 0.0)
    trust, own = tmp_path / "trust.pem", tmp_path / "own.pem"
    chain, key = authority(0).issue("reader")
    trust.write_text(authority(0).trust)
    own.write_text(key + chain)
    options = {
        "kafka.bootstrap.servers": "127.0.0.1:9092",
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.location": str(trust),
        "kafka.ssl.keystore.location": str(own),
        "subscribe": "t",
    }
    first = tls_context(parse_options(options, streaming=True).client)
    assert tls_context(parse_options(options, streaming=True).client) is first, "nothing has changed"
    trust.write_text(authority(0).trust + authority(1).trust)
    second = tls_context(parse_options(options, streaming=True).client)
    assert [len(context.get_ca_certs()) for context in (first, second)] == [1, 2]
    own.write_text("half of it")
    assert tls_context(parse_options(options, streaming=True).client) is second
