"""Goal: messages about an S3 service begin with the cause and name the key to change. Method: texts of the library."""

import pytest

from moldau_broker.remote_log.storage.s3_failures import SHOWN_CHARACTERS, explained

REQUEST = "Generic S3 error: Error performing GET http://h:1/b?prefix=c%2F&secret=no in 1.2ms"
DEBUG = "\n\nDebug source:\nGeneric {"


def answered(status, body=""):
    return f"{REQUEST} - Server returned non-2xx status code: {status}: {body}{DEBUG}"


def xml(code, message):
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            answered("403 Forbidden", xml("RequestTimeTooSkewed", "too large")),
            "403 Forbidden, RequestTimeTooSkewed: too large (GET http://h:1/b); set the clock of this machine",
        ),
        (answered("409 Conflict", xml("Other", "no")), "409 Conflict, Other: no (GET http://h:1/b)"),
        (answered("502 Bad Gateway", "a proxy"), "502 Bad Gateway, a proxy (GET http://h:1/b)"),
        (answered("500 Internal Server Error"), "500 Internal Server Error, without a text (GET http://h:1/b)"),
        (
            answered("301 Moved Permanently"),
            "301 Moved Permanently, without a text (GET http://h:1/b); correct remote.log.storage.s3.endpoint.url "
            "(https:// in place of http://?) or remote.log.storage.s3.region",
        ),
        (
            f"{REQUEST} - Received redirect without LOCATION, this normally indicates an incorrectly configured region",
            "the bucket is in another region (GET http://h:1/b); correct remote.log.storage.s3.region",
        ),
        (
            f"{REQUEST}, after 3 retries - HTTP error: error sending request{DEBUG} TimedOut",
            "no answer in time (GET http://h:1/b); check remote.log.storage.s3.endpoint.url, and "
            "whether the service runs",
        ),
        (
            f"{REQUEST} - HTTP error: request or response body error{DEBUG} Incomplete",
            "HTTP error: request or response body error (GET http://h:1/b); check remote.log.storage.s3.endpoint.url, "
            "and whether the service runs",
        ),
        ("x" * 1000, "x" * SHOWN_CHARACTERS),
        ("a failure" + DEBUG, "a failure"),
    ],
)
def test_the_cause_comes_first(text, shown):
    assert explained(ValueError(text)) == shown


def test_an_instance_without_a_role_is_asked_for_a_key():
    text = "Error performing PUT http://169.254.169.254/latest/api/token in 6ms - HTTP error: error sending request"
    assert explained(ValueError(text)).startswith("no credentials were found: set remote.log.storage.s3.access.key.id")
