"""Goal: stores of keys and tiers of logs are refused where their keys do not fit together, and nowhere else.

Method: every combination of the keys that depend on each other.
"""

from __future__ import annotations

from itertools import product

import pytest

from moldau.runtime.config import ADMIN_CONFIG, BROKER_CONFIG, Config, ConfigError
from moldau.runtime.config.tls import tls_problems, tls_settings

CLIENT = {"bootstrap.servers": "b:1"}
STORE_KEYS = ("location", "certificate.chain", "key")


@pytest.mark.parametrize("given", list(product((False, True), repeat=3)), ids=str)
def test_a_key_store_is_a_file_or_two_texts(given: tuple[bool, bool, bool]) -> None:
    has_file, has_chain, has_key = given
    keys = {f"ssl.keystore.{key}": "x" for key, has in zip(STORE_KEYS, given, strict=True) if has}
    problems = tls_problems(tls_settings(ADMIN_CONFIG.parse(CLIENT | keys)))
    if has_file and (has_chain or has_key):
        assert problems == ["ssl.keystore.location: cannot be combined with certificate chain and key as texts"]
    elif has_chain != has_key:
        assert problems == ["ssl.keystore.certificate.chain and ssl.keystore.key: one needs the other"]
    else:
        assert problems == []


@pytest.mark.parametrize("given", list(product((False, True), repeat=3)), ids=str)
def test_a_trust_store_is_a_file_or_a_text(given: tuple[bool, bool, bool]) -> None:
    has_file, has_text, is_pkcs12 = given
    keys = {key: "x" for key, has in zip(("location", "certificates"), given, strict=False) if has}
    keys |= {"type": "PKCS12"} if is_pkcs12 else {}
    found = tls_problems(tls_settings(ADMIN_CONFIG.parse(CLIENT | {f"ssl.truststore.{k}": v for k, v in keys.items()})))
    expected = []
    if has_file and has_text:
        expected.append("ssl.truststore.location: cannot be combined with ssl.truststore.certificates")
    if is_pkcs12 and not has_file:
        expected.append("ssl.truststore.type = PKCS12: needs ssl.truststore.location")
    assert found == expected


def node(role: str, **more: object) -> Config:
    voters = {"controller.quorum.voters": "101@c:9093", "controller.listener.names": "CONTROLLER"}
    own = {"node.id": 1, "listeners": "PLAINTEXT://h:9092"} if role == "broker" else {}
    own = own or {"node.id": 101, "listeners": "CONTROLLER://c:9093"}
    return BROKER_CONFIG.parse({"process.roles": role, **voters, **own, **more})


@pytest.mark.parametrize(
    ("role", "enabled", "has_url"), list(product(("broker", "controller"), (False, True), (False, True)))
)
def test_a_broker_with_tiered_storage_names_its_store(role: str, enabled: bool, has_url: bool) -> None:
    given = {"remote.log.storage.system.enable": enabled} | ({"remote.log.storage.url": "file:///s"} if has_url else {})
    if role == "broker" and enabled and not has_url:
        with pytest.raises(ConfigError, match=r"a broker needs remote\.log\.storage\.url, too"):
            node(role, **given)
    else:
        assert node(role, **given).get_bool("remote.log.storage.system.enable") is enabled


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize(
    ("whole", "local", "fits"), [(100, 100, True), (100, -2, True), (100, 101, False), (100, -1, False)]
)
def test_local_retention_counts_only_with_tiered_storage(enabled: bool, whole: int, local: int, fits: bool) -> None:
    """The defaults of topics are those of the node's file: a topic without keys of its own would not fit."""
    given = {"log.retention.ms": whole, "log.local.retention.ms": local, "remote.log.storage.url": "file:///s"}
    given["remote.log.storage.system.enable"] = enabled
    if enabled and not fits:
        text = f"defaults of topics: local.retention.ms = {local}: must not be above retention.ms = {whole}"
        with pytest.raises(ConfigError, match=text):
            node("broker", **given)
    else:
        assert node("broker", **given).get_int("log.local.retention.ms") == local
