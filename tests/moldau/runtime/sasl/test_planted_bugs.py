"""Goal: the tests of this folder find the mistakes that an authentication must not have.

Method: each mistake is planted into the code, and the named tests must then fail; without it they pass.
"""

import hmac

import pytest

from moldau.runtime.sasl import gate
from moldau.runtime.sasl.core import plain, scram, server
from moldau.runtime.sasl.core.server import Event, PassOn, SaslSession, State
from moldau.runtime.sasl.tokens import TokenChecker

from . import test_gate, test_mechanisms, test_scram, test_session, test_tokens


def skip_comparison_of_passwords(patch):
    patch.setattr(plain.hmac, "compare_digest", lambda known, given: True)


def skip_comparison_of_proofs(patch):
    class Hashing:
        """Every hash equals every other."""

        compare_digest = staticmethod(lambda known, given: known != given or True)
        digest = staticmethod(hmac.digest)

    patch.setattr(scram, "hmac", Hashing)


def do_not_check_the_servers_nonce(patch):
    real = scram.ScramServer._final

    def final(self, message):
        match = scram._CLIENT_FINAL.fullmatch(message)
        self._nonce = match[3] if match else self._nonce
        return real(self, message)

    patch.setattr(scram.ScramServer, "_final", final)


def do_not_check_the_clients_nonce(patch):
    real = scram.ScramClient.respond

    def respond(self, challenge):
        self._nonce = ""
        return real(self, challenge)

    patch.setattr(scram.ScramClient, "respond", respond)


def ignore_iterations(patch):
    patch.setattr(scram, "ITERATIONS_MIN", 0)


def do_not_check_the_servers_signature(patch):
    patch.setattr(scram.ScramClient, "_check_signature", lambda self, message: setattr(self, "is_complete", True))


def admit_unknown_users(patch):
    real = scram.ScramServer._first

    def first(self, message):
        outcome = real(self, message)
        self._is_known = True
        return outcome

    patch.setattr(scram.ScramServer, "_first", first)


def ignore_the_binding(patch):
    real = scram._decode64
    patch.setattr(scram, "_decode64", lambda text: b"n,," if text in ("eSws", "biwsYQ==") else real(text))


def do_not_check_the_expiry(patch):
    real = TokenChecker._facts
    patch.setattr(TokenChecker, "_facts", lambda self, claims: real(self, {**claims, "exp": 1 << 33}))


def do_not_check_the_signature_of_tokens(patch):
    from moldau.runtime.sasl import tokens

    patch.setattr(TokenChecker, "_verified", lambda self, token: tokens._part(token, 1))


def skip_the_handshake(patch):
    table = dict(server._TABLE)
    table[State.INITIAL, Event.OTHER] = lambda session, given: PassOn()
    patch.setattr(server, "_TABLE", table)


def forget_the_end_of_sessions(patch):
    patch.setattr(SaslSession, "_pass_request", lambda self, given: PassOn())
    table = dict(server._TABLE)
    table[State.AUTHENTICATED, Event.OTHER] = lambda session, given: PassOn()
    patch.setattr(server, "_TABLE", table)


def let_principals_change(patch):
    real = SaslSession._step

    def step(self, given):
        self.user, before = None, self.user
        effect = real(self, given)
        self.user = self.user or before
        return effect

    table = {key: step if method is real else method for key, method in server._TABLE.items()}
    patch.setattr(server, "_TABLE", table)


def go_on_after_a_failure(patch):
    table = dict(server._TABLE)
    for event in (Event.OTHER, Event.VERSIONS):
        table[State.CLOSED, event] = lambda session, given: PassOn()
    patch.setattr(server, "_TABLE", table)


def answer_failures_at_once(patch):
    class Impatient:
        """Stands for trio in the gate alone."""

        @staticmethod
        async def sleep(seconds):
            pass

    patch.setattr(gate, "trio", Impatient)


BUGS = {
    skip_comparison_of_passwords: lambda: test_mechanisms.test_plain_refuses(b"\0alice\0wrong", plain.INVALID),
    skip_comparison_of_proofs: lambda: test_scram.test_a_wrong_password_and_an_unknown_user_look_alike("SCRAM-SHA-256"),
    do_not_check_the_servers_nonce: lambda: test_scram.test_a_final_message_of_another_exchange_is_refused(
        b"r=CLIENTSERVER", b"r=CLIENTOTHER"
    ),
    do_not_check_the_clients_nonce: lambda: test_scram.test_a_client_does_not_trust_a_servers_first_message(
        b"r=OTHERSERVER,s=c2FsdA==,i=4096", "does not continue"
    ),
    ignore_iterations: lambda: test_scram.test_a_credential_with_few_iterations_is_refused(),
    do_not_check_the_servers_signature: lambda: test_scram.test_a_client_does_not_trust_a_server_without_the_keys(
        b"v=AAAA"
    ),
    admit_unknown_users: lambda: test_scram.test_the_proof_of_a_decoy_never_fits(),
    ignore_the_binding: lambda: test_scram.test_a_final_message_of_another_exchange_is_refused(b"c=biws", b"c=eSws"),
    do_not_check_the_expiry: lambda: test_tokens.test_wrong_tokens({"life_s": -31}, "expired"),
    do_not_check_the_signature_of_tokens: lambda: test_tokens.test_wrong_tokens({"signed_by": "stranger"}, "signature"),
    skip_the_handshake: lambda: test_gate.test_nothing_passes_without_an_authentication((test_gate.METADATA,)),
    forget_the_end_of_sessions: lambda: test_session.test_a_session_ends_and_can_be_renewed_after_its_end(),
    let_principals_change: lambda: test_session.test_a_re_authentication_keeps_mechanism_and_principal(),
    go_on_after_a_failure: lambda: test_session.test_every_state_with_every_event(State.CLOSED, Event.OTHER),
    answer_failures_at_once: lambda: test_gate.test_a_failure_is_delayed_and_says_why_in_kafkas_words(),
}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_each_planted_bug_is_found(bug, monkeypatch):
    BUGS[bug]()
    with monkeypatch.context() as patch:
        bug(patch)
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            BUGS[bug]()
    BUGS[bug]()
