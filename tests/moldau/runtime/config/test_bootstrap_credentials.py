"""Goal: the users of a new cluster get the secrets that the operator wrote, and a mistake is named without them.

Method: every form of an entry, alone and among others.
"""

from __future__ import annotations

import base64
from itertools import product

import pytest

from moldau.runtime.config import BROKER_CONFIG, ConfigError
from moldau.runtime.config.sasl import SCRAM_MECHANISMS, BootstrapCredential, bootstrap_credentials
from moldau.runtime.sasl.core.scram import keys_of, salted_password
from moldau.runtime.sasl.listener import bootstrap_keys
from support.sasl import node_config

KEY = "sasl.scram.bootstrap.credentials"
SALT = base64.b64encode(b"salt of it").decode()
SALTED = base64.b64encode(b"s" * 32).decode()


def credentials(text: str) -> tuple[BootstrapCredential, ...]:
    return bootstrap_credentials(BROKER_CONFIG.parse(node_config(**{KEY: text})))


ENTRIES = [
    *(
        (
            f"{mechanism}=[name={user},password={password}{more}]",
            {"mechanism": mechanism, "user": user, "password": password.strip('"'), "iterations": iterations},
        )
        for mechanism, user, password, (more, iterations) in product(
            SCRAM_MECHANISMS,
            ("ann", "CN=a b"),
            ("s3cret", '"s3,c]r;et"', "=s3=cret="),
            (("", 4096), (",iterations=4096", 4096), (",iterations=16384", 16_384)),
        )
    ),
    (
        f"SCRAM-SHA-256=[iterations=8192,salt={SALT},saltedpassword={SALTED},name=ann]",
        {"user": "ann", "password": None, "salt": b"salt of it", "salted_password": b"s" * 32, "iterations": 8192},
    ),
    (f'SCRAM-SHA-512=[name=ann,password="a,b",salt="{SALT}"]', {"password": "a,b", "salt": b"salt of it"}),
    ("SCRAM-SHA-256=[name=ann, password=s3cret]", {"user": "ann", "password": "s3cret"}),
]


@pytest.mark.parametrize(("text", "expected"), ENTRIES)
def test_each_form_of_an_entry_is_read(text: str, expected: dict[str, object]) -> None:
    other = "SCRAM-SHA-512=[name=zoe,password=other]"
    for whole, place in (
        (text, 0),
        (f"{text};{other}", 0),
        (f"{other};{text}", 1),
        (f" {text};", 0),
        (f"{text} ; {other}", 0),
    ):
        found = credentials(whole)
        assert {name: getattr(found[place], name) for name in expected} == expected
        assert len(found) == 1 + (other in whole)
    assert credentials("") == bootstrap_credentials(BROKER_CONFIG.parse(node_config())) == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("SCRAM-SHA-1=[name=ann,password=s3cret]", "must be like"),
        ("SCRAM-SHA-256=[name=ann,password=s3cret];x", "must be like"),
        ("SCRAM-SHA-256=[name=ann,name=zoe,password=s3cret]", "must be like"),
        ("SCRAM-SHA-256=name=ann,password=s3cret", "must be like"),
        ("SCRAM-SHA-256=[name=,password=s3cret]", "an entry lacks name"),
        ("SCRAM-SHA-256=[name=ann]", "ann must have either password or saltedpassword"),
        ("SCRAM-SHA-256=[name=ann,password=]", "ann must have either password or saltedpassword"),
        (f"SCRAM-SHA-256=[name=ann,password=s3cret,saltedpassword={SALTED},salt={SALT}]", "either password or"),
        (f"SCRAM-SHA-256=[name=ann,saltedpassword={SALTED}]", "lacks its salt"),
        *(
            (f"SCRAM-SHA-256=[name=ann,password=s3cret,iterations={count}]", "from 4096 to 16384 iterations")
            for count in (
                "4095",
                "16385",
                "",
                "-5000",
                "5_000",
                "5000.0",
                "\u0665\u0660\u0660\u0660",
                "\u00b2\u00b2\u00b2\u00b2",
            )
        ),
        *(
            (f"SCRAM-SHA-256=[name=ann,password=s3cret,salt={salt}]", "ann has a salt or saltedpassword that is not")
            for salt in ("s3cre", "s3cr$dA==", "s3cr\u00e9t==", "\u20ac")
        ),
        *(
            (f"SCRAM-SHA-256=[name=ann,saltedpassword={salted},salt={SALT}]", "that is not base64")
            for salted in ("s3cr\u00e9t", "s3cr$dA==")
        ),
    ],
)
def test_a_wrong_entry_is_named_without_its_secret(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        credentials(text)
    assert all(each.startswith(f"{KEY} = [hidden]: ") for each in caught.value.problems)
    assert "s3cr" not in str(caught.value)


def test_keys_of_entries_are_those_of_their_passwords() -> None:
    """A salt is drawn for each entry without one; entries of one user with two mechanisms stay apart."""
    given = credentials(
        "SCRAM-SHA-256=[name=ann,password=a];SCRAM-SHA-512=[name=ann,password=b,iterations=5000];"
        f"SCRAM-SHA-256=[name=zoe,password=c,salt={SALT}];"
        f"SCRAM-SHA-256=[name=tom,saltedpassword={SALTED},salt={SALT}]"
    )
    drawn = iter((b"first salt", b"second salt"))
    found = bootstrap_keys(given, lambda size: next(drawn))
    salts = {
        ("ann", 1): b"first salt",
        ("ann", 2): b"second salt",
        ("zoe", 1): b"salt of it",
        ("tom", 1): b"salt of it",
    }
    assert list(found) == list(salts)
    assert next(drawn, None) is None
    for (user, number), keys in found.items():
        (entry,) = (each for each in given if (each.user, SCRAM_MECHANISMS[each.mechanism]) == (user, number))
        salt = salts[user, number]
        salted = b"s" * 32
        if entry.password is not None:
            salted = salted_password(entry.mechanism, entry.password, salt, entry.iterations)
        assert keys == keys_of(entry.mechanism, salted, salt, entry.iterations)
