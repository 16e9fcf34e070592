"""Goal: settings with commas are divided as `kafka-configs` divides them, and no value loses its own commas.

Method: the texts alone, and the command with an admin client that notes the changes.
"""

import pytest

from moldau_cli.commands.administration import configs
from moldau_cli.main import main
from moldau_cli.words import split_settings

KEYS = {"a", "b", "cleanup.policy", "match"}


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("a=1", ["a=1"]),
        ("a=1,b=2", ["a=1", "b=2"]),
        ("a=1, b =2", ["a=1", " b =2"]),
        ("a=,b=", ["a=", "b="]),
        ("cleanup.policy=compact,delete", ["cleanup.policy=compact,delete"]),
        ("cleanup.policy=compact,delete,a=1", ["cleanup.policy=compact,delete", "a=1"]),
        ("cleanup.policy=[compact,delete],a=1", ["cleanup.policy=compact,delete", "a=1"]),
        ("match=client_id=x,client_version=y,a=1", ["match=client_id=x,client_version=y", "a=1"]),
        ("match=[client_id=x,a=3],b=[2]", ["match=client_id=x,a=3", "b=2"]),
        ("a=1,other=2", ["a=1,other=2"]),
        ("a=[1,b=2", ["a=[1,b=2"]),
        ("a=x[0],b=[0]y", ["a=x[0]", "b=[0]y"]),
        ("other=1,a=2", ["other=1", "a=2"]),
        ("a=RULE:^CN=(.*?),OU=x$/$1/", ["a=RULE:^CN=(.*?),OU=x$/$1/"]),
        ("a=1,b", ["a=1,b"]),
    ],
)
def test_commas_divide_settings_before_a_known_key(text, settings):
    assert split_settings([text], KEYS.__contains__) == settings


@pytest.mark.parametrize(
    ("kind", "text", "changes"),
    [
        (
            "topics",
            "retention.ms=5,cleanup.policy=compact,delete",
            {"retention.ms": "5", "cleanup.policy": "compact,delete"},
        ),
        (
            "brokers",
            "listener.name.inside.ssl.keystore.type=PEM,log.cleaner.threads=2",
            {"listener.name.inside.ssl.keystore.type": "PEM", "log.cleaner.threads": "2"},
        ),
        ("groups", "share.session.timeout.ms=5,share.heartbeat.interval.ms=6", {"share.session.timeout.ms": "5"}),
        ("client-metrics", "metrics=a.,b.,interval.ms=9,match=[client_id=a,client_id=b]", {"metrics": "a.,b."}),
        ("broker-loggers", "moldau=INFO,moldau.client=DEBUG", {"moldau": "INFO", "moldau.client": "DEBUG"}),
    ],
)
def test_several_keys_in_one_option_are_changed(monkeypatch, kind, text, changes):
    """The second key was taken for a part of the first value."""
    made = {}

    class Client:
        async def alter_configs(self, wanted):
            made.update({each.name: each.value for alterations in wanted.values() for each in alterations})

    def with_admin_of(bootstrap, controllers, work):
        with pytest.raises(StopIteration):
            work(Client()).send(None)

    monkeypatch.setattr(configs, "with_admin_of", with_admin_of)
    assert main(["configs", "alter", "--entity-type", kind, "--entity-name", "1", "--add-config", text]) == 0
    assert {key: made[key] for key in changes} == changes
    assert len(made) == text.count("=") - text.count("client_id=")
