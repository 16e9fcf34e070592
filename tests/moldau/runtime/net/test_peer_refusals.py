"""A node reports that a peer refuses it: at once, then once a minute, and when that is over."""

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.runtime.net.peer_refusals import REMIND_MS, PeerRefusals, is_refusal
from moldau.runtime.sasl.core.errors import SaslAuthenticationError
from moldau.runtime.telemetry.log import EventLogger
from moldau.runtime.tls.errors import TlsHandshakeCutError, TlsHandshakeError, TlsMismatchError

REFUSED = SaslAuthenticationError(ErrorCode.SASL_AUTHENTICATION_FAILED, "no")
PEER = ("c102", 9093)


class Clock:
    now_ms = 0.0

    def monotonic_ms(self):
        return self.now_ms


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (REFUSED, True),
        (TlsHandshakeError(71, "certificate has expired"), True),
        (TlsMismatchError("speaks TLS"), True),
        (TlsHandshakeCutError(71, "the peer left"), False),
        (ConnectionResetError(), False),
        (TimeoutError(), False),
        ("no answer in time", False),
    ],
)
def test_refusals_differ_from_faults_of_the_network(error, expected):
    assert is_refusal(error) is expected


def test_a_refusal_that_lasts_is_logged_once_a_minute(caplog):
    caplog.set_level("INFO")
    clock = Clock()
    refusals = PeerRefusals(clock, EventLogger("moldau.test", node=101), 102)
    for clock.now_ms in range(0, int(2 * REMIND_MS), 500):
        assert refusals.failed(REFUSED, PEER)
    assert not refusals.failed(ConnectionResetError(), PEER)
    refusals.connected()
    refusals.connected()
    refusals.failed(REFUSED, PEER)
    assert [line.partition(" ")[0] for line in caplog.messages] == [
        "peer-unusable",
        "peer-unusable",
        "peer-usable",
        "peer-unusable",
    ]
    assert "peer=102 address=c102:9093" in caplog.messages[0]
    assert "attempts=121" in caplog.messages[1]
