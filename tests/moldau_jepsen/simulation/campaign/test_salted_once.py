"""Goal: a run salts a password once, and nothing else does.

Method: the function of SCRAM inside and outside of the block.
"""

from __future__ import annotations

from moldau.runtime.sasl.core import scram
from moldau_jepsen.cluster.secured import MECHANISM, salted_once

SALT = bytes(range(24))


def test_a_password_is_salted_once_inside_of_the_block_only():
    usual = scram.pbkdf2_hmac
    expected = scram.salted_password(MECHANISM, "secret", SALT, scram.ITERATIONS_MIN)
    with salted_once():
        for _ in range(3):
            assert scram.salted_password(MECHANISM, "secret", SALT, scram.ITERATIONS_MIN) == expected
        assert scram.salted_password(MECHANISM, "other", SALT, scram.ITERATIONS_MIN) != expected
        remembered = vars(scram)["pbkdf2_hmac"].cache_info()
        assert (remembered.misses, remembered.hits) == (2, 2)
    assert scram.pbkdf2_hmac is usual
