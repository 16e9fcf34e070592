"""Keys of all clients about finding brokers: by name, and when they are gone or belong to another cluster."""

from __future__ import annotations

from moldau.runtime.config.declare import MINUTE_MS, boolean, long, string

RECOVERY_KEYS = (
    string(
        name="client.dns.lookup",
        default="use_all_dns_ips",
        group="Connection",
        choices=("use_all_dns_ips",),
        doc="How names of servers are looked up: the addresses of a name are tried one after the other. Kafka's other "
        "value, resolve_canonical_bootstrap_servers_only, is not served.",
    ),
    string(
        name="metadata.recovery.strategy",
        default="rebootstrap",
        group="Connection",
        choices=("rebootstrap", "none"),
        ignores_case=True,
        doc=(
            "What the client does when no known broker can be reached (KIP-899): it starts again at bootstrap.servers, "
            "whose names it resolves again (rebootstrap), or tries the known brokers on and on (none)."
        ),
    ),
    long(
        name="metadata.recovery.rebootstrap.trigger.ms",
        default=5 * MINUTE_MS,
        group="Connection",
        minimum=0,
        doc=(
            "How long the client tries to get metadata before it forgets the known brokers, closes all connections and "
            "starts again at bootstrap.servers, in milliseconds (KIP-1102); each request gets a second at least. No "
            "effect with metadata.recovery.strategy=none."
        ),
    ),
    boolean(
        name="metadata.cluster.check.enable",
        default=True,
        group="Connection",
        doc=(
            "Whether the client names the cluster and the broker that it expects behind an address, and starts again "
            "at bootstrap.servers if another one is there (KIP-1242). Brokers before Kafka 4.4 do not check; the "
            "client then compares the cluster ids of Metadata answers. No effect with metadata.recovery.strategy=none."
        ),
    ),
)
