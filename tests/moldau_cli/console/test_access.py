"""Goal: requests of other sites are refused, those of the console's own pages are not. Method: headers by hand."""

import pytest

from moldau_cli.console.core.access import (
    CSRF_HEADER,
    SECURITY_HEADERS,
    host_of,
    is_expected_host,
    is_loopback,
    refuse_change,
    refuse_foreign,
)

HERE = {"host": "127.0.0.1:9080"}


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.7", False),
        ("console.example", False),
        ("localhost.evil.example", False),
    ],
)
def test_only_addresses_of_this_machine_are_loopback(host, loopback):
    assert is_loopback(host) is loopback


@pytest.mark.parametrize(
    ("header", "host"),
    [("LocalHost:9080", "localhost"), ("[::1]:9080", "::1"), ("[::1]", "::1"), ("10.0.0.1", "10.0.0.1"), ("", "")],
)
def test_a_host_header_is_taken_apart(header, host):
    assert host_of(header) == host


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("localhost:9080", True),
        ("127.0.0.1:9080", True),
        ("[::1]:9080", True),
        ("console.example:9080", True),
        ("evil.example:9080", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
        ("console.example.evil.example", False),
    ],
)
def test_names_must_be_known_and_addresses_are(header, expected):
    """DNS rebinding points a foreign name at this machine, so only names need a list."""
    assert is_expected_host(header, {"console.example"}) is expected


@pytest.mark.parametrize(
    ("method", "path", "more", "status"),
    [
        ("GET", "/api/overview", {}, None),
        ("POST", "/api/records", {}, None),
        ("POST", "/api/records", {"origin": "http://127.0.0.1:9080", "sec-fetch-site": "same-origin"}, None),
        ("GET", "/", {"sec-fetch-site": "cross-site"}, None),  # a link on another page
        ("GET", "/api/session", {"sec-fetch-site": "cross-site"}, 403),
        ("POST", "/api/records", {"sec-fetch-site": "cross-site"}, 403),
        ("POST", "/api/records", {"sec-fetch-site": "same-site"}, 403),
        ("POST", "/api/records", {"origin": "http://evil.example"}, 403),
        ("GET", "/", {"origin": "http://127.0.0.1:8000"}, 403),
        ("POST", "/api/records", {"origin": "null"}, 403),
        ("GET", "/", {"host": "evil.example"}, 421),
    ],
)
def test_requests_of_other_sites_are_refused(method, path, more, status):
    refusal = refuse_foreign(method, path, {**HERE, **more}, frozenset())
    assert (refusal and refusal.status) == status


@pytest.mark.parametrize(
    ("method", "header", "read_only", "status"),
    [
        ("GET", None, True, None),
        ("POST", "right", False, None),
        ("POST", None, False, 403),
        ("POST", "wrong", False, 403),
        ("POST", "r\u00efght", False, 403),
        ("DELETE", None, False, 403),
        ("POST", "right", True, 403),
    ],
)
def test_a_change_needs_the_sessions_token(method, header, read_only, status):
    headers = {} if header is None else {CSRF_HEADER: header}
    refusal = refuse_change(method, headers, "right", read_only=read_only)
    assert (refusal and refusal.status) == status


def test_the_policy_allows_own_scripts_only():
    policy = dict(part.strip().split(" ", 1) for part in SECURITY_HEADERS["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert "unsafe" not in SECURITY_HEADERS["content-security-policy"]
