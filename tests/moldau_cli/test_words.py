"""Goal: settings with commas are divided as `kafka-configs` divides them, and no value loses its own commas.

Method: the texts alone, and the command with an admin client that notes the changes.
"""

import pytest

from moldau_cli.commands.administration import configs
from moldau_cli.errors import UsageError
from moldau_cli.main import main
from moldau_cli.words import (
    NUMBER_MAX,
    absent_partition,
    counted,
    expression_of,
    is_number,
    parse_ids,
    parse_settings,
    partition_ranges,
    split_settings,
)

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
        ("a=[1][2]", ["a=[1][2]"]),
        ("a=[1,b=2],b=[]", ["a=1,b=2", "b="]),
        ("a= [1] ", ["a=1"]),
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
        ("groups", "share.session.timeout.ms=5,streams.assignor.name=x", {"share.session.timeout.ms": "5"}),
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


@pytest.mark.parametrize(
    ("pairs", "settings"),
    [
        ([], {}),
        (["a=1", "b = 2 "], {"a": "1", "b": "2"}),
        (["a=", "b=1=2"], {"a": "", "b": "1=2"}),
        (["a=1", "a=2"], {"a": "2"}),
    ],
)
def test_settings_of_an_option(pairs, settings):
    assert parse_settings(pairs, "--set") == settings


@pytest.mark.parametrize("pair", ["a", "=1", " =1", "", "="])
def test_a_setting_has_a_key_and_a_value(pair):
    with pytest.raises(UsageError, match="--set: expected KEY=VALUE, not"):
        parse_settings(["b=1", pair], "--set")


def test_a_key_may_be_given_twice_only_where_the_last_one_counts():
    with pytest.raises(UsageError, match="--set: a is given twice"):
        parse_settings(["a=1", " a =2"], "--set", may_repeat=False)
    assert parse_settings(["a=1", "b=2"], "--set", may_repeat=False) == {"a": "1", "b": "2"}


def test_numbers_have_a_greatest_one():
    texts = ["0", "007", str(NUMBER_MAX), str(NUMBER_MAX + 1), "9" * 5000, "", "-1", "1.0", "1_0", " 1", "\u00b2"]
    assert [text for text in texts if is_number(text)] == ["0", "007", str(NUMBER_MAX)]


def test_ids_are_different_numbers():
    assert parse_ids("3, 1,2", "ids") == [3, 1, 2]
    assert parse_ids(" ", "ids", may_be_empty=True) == []
    for wrong in ("", "1,", "1,1", "1,01x", "a", "1,-2", "1 2"):
        with pytest.raises(UsageError, match="ids, not "):
            parse_ids(wrong, "ids", may_be_empty=bool(wrong))


def test_counts_have_their_nouns():
    assert [counted(number, "node") for number in (0, 1, 2, 1000)] == ["0 nodes", "1 node", "2 nodes", "1,000 nodes"]


@pytest.mark.parametrize("text", ["(", "a{99999999999}", "(" * 3000 + ")" * 3000])
def test_an_expression_that_python_cannot_hold_is_refused(text):
    with pytest.raises(UsageError, match=r"^--include: '.* is not a regular expression: "):
        expression_of(text, "--include")


def test_an_odd_expression_is_no_warning_of_python(recwarn):
    """Python remarks on `[[`, with a line of the source; people and programs that read stderr want neither."""
    assert expression_of("[[:alpha:]", "--include").fullmatch("[")
    assert not recwarn.list


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], "no partition"),
        ([0], "partition 0"),
        ([7], "partition 7"),
        ([1, 0], "partitions 0 to 1"),
        (range(300), "partitions 0 to 299"),
        ([0, 2], "partitions 0, 2"),
        ([5, 0, 1, 2, 2], "partitions 0 to 2, 5"),
        ([0, 2, 3, 9, 10, 11], "partitions 0, 2 to 3, 9 to 11"),
    ],
)
def test_partitions_are_named_as_ranges(numbers, text):
    assert partition_ranges(numbers) == text
    assert absent_partition("t", numbers, 99) == f"topic t has {text}, not 99"
