"""Goal: each address, login and proxy that an environment gives a registry's client works, or is refused by its name.

Method: the choice of a proxy is pure; requests go to answers in place of the network.
"""

from urllib.parse import unquote

import httpx
import pytest
import trio

from moldau.runtime.config import ConfigError
from moldau.serialization import RegistryError, SchemaRegistry
from moldau.serialization.core.proxies import proxy_for

PROXY = "http://proxy:3128"


@pytest.mark.parametrize(
    ("exceptions", "passed"),
    [
        ("*", True),
        ("registry.example.com", True),
        ("example.com", True),
        (".example.com", True),
        ("*.example.com", True),
        ("a b, ,REGISTRY.example.com,", True),
        ("registry.example.com:8081", True),
        ("registry.example.com:80", False),
        ("ample.com", False),
        ("é,[::1],fd00::/8,10.0.0.1:xx,::1", False),
        ("", False),
    ],
)
def test_exceptions_from_the_proxy_are_domains(exceptions, passed):
    found = proxy_for("http://Registry.example.com:8081", {"http": PROXY, "no": exceptions})
    assert found == (None if passed else PROXY)


@pytest.mark.parametrize(
    ("host", "exceptions", "passed"),
    [
        ("10.1.2.3", "10.0.0.0/8", True),
        ("10.1.2.3", "10.1.2.3:8081", True),
        ("11.1.2.3", "10.0.0.0/8", False),
        ("[fd00::1]", "fd00::/8", True),
        ("[fd00::1]", "fd00::1", True),
        ("[fd00::1]", "[fd00::1]", True),
        ("[fd00::1]", "[fd00::1]:8081", True),
        ("[fd00::1]", "[fd00::1]:80", False),
        ("[fd00::1]", "10.0.0.0/8", False),
    ],
)
def test_exceptions_from_the_proxy_are_addresses(host, exceptions, passed):
    """A network or an address in brackets in NO_PROXY failed all requests."""
    found = proxy_for(f"http://{host}:8081", {"all": "proxy:3128", "no": exceptions})
    assert found == (None if passed else PROXY)


def test_a_proxy_serves_its_scheme():
    proxies = {"https": PROXY, "all": "http://other"}
    assert proxy_for("https://registry", proxies) == PROXY
    assert proxy_for("http://registry", proxies) == "http://other"
    assert proxy_for("http://registry", {"https": PROXY}) is None


@pytest.mark.parametrize("proxy", ["socks://u:s3cret@proxy:1080", "foo://proxy", "http://u:s3cret@proxy:port"])
def test_a_proxy_that_cannot_be_used_is_named(monkeypatch, proxy):
    """It was an untyped error of the HTTP library, so an application ended."""
    monkeypatch.setattr("moldau.serialization.registry.getproxies", lambda: {"all": proxy})
    registry = SchemaRegistry({"schema.registry.url": "http://u:s3cret@127.0.0.1:1", "max.retries": 0})
    with pytest.raises(RegistryError, match=r"^http://127\.0\.0\.1:1: the proxy that .*ALL_PROXY names") as caught:
        trio.run(registry.subjects)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://ann:s3/cret@registry:8081", "a login in it has %2F"),
        ("http://ann:12/s3cret@registry:8081", "a login in it has %2F"),
        ("http://ann:s3#cret@registry:8081", "a login in it has %2F"),
        ("http://ann:pw@registry:port", "a port is a number"),
        ("http://registry:99999", "a port is a number"),
        ("http://registry:8081?a=b", "must be the address"),
        ("http://registry:8081#a", "must be the address"),
        ("http://", "must be the address"),
    ],
)
def test_an_address_of_no_registry_is_refused(url, said):
    """Each was an error of each request; that about a login with a slash showed it."""
    with pytest.raises(ConfigError, match=said) as caught:
        SchemaRegistry({"schema.registry.url": url})
    assert "s3" not in str(caught.value)


def asked(answer, **settings):
    """Sends a request; returns it."""
    requests = []

    def take(request):
        requests.append(request)
        return answer

    given = {"schema.registry.url": "http://registry/base/", "max.retries": 0} | settings
    registry = SchemaRegistry(given, transport=httpx.MockTransport(take))
    try:
        trio.run(registry.subjects)
    except RegistryError as error:
        return str(error)
    return requests[0]


def test_a_login_may_have_no_user():
    request = asked(httpx.Response(200, json=[]), **{"basic.auth.user.info": ":pw"})
    assert request.headers["authorization"] == "Basic OnB3"
    assert request.url == "http://registry/base/subjects"


def test_a_redirect_is_named():
    answer = httpx.Response(308, headers={"location": "https://u:s3cret@registry/base/subjects"})
    said = "GET http://registry/base/subjects: the schema registry answers 308, which leads to "
    assert asked(answer) == f"{said}https://registry/base/subjects; correct schema.registry.url"


@pytest.mark.parametrize("subject", [".", "..", "a/../..", "%2E%2E", "...", "a.b", "?x#y"])
def test_a_subject_stays_in_the_path_of_the_registry(subject):
    """The segments ``.`` and ``..`` led the request to another path of the server."""
    asked = []

    def answer(request):
        asked.append(request.url)
        return httpx.Response(200, json=[1])

    registry = SchemaRegistry({"schema.registry.url": "http://r/base"}, transport=httpx.MockTransport(answer))
    assert trio.run(registry.versions, subject) == [1]
    (url,) = asked
    before, base, subjects, segment, last = url.raw_path.decode().split("/")
    assert (before, base, subjects, last) == ("", "base", "subjects", "versions")
    assert segment not in (".", "..")
    assert unquote(segment) == subject


@pytest.mark.parametrize("number", [0, -1])
def test_a_version_is_counted_from_one(number):
    registry = SchemaRegistry({"schema.registry.url": "http://r"})
    with pytest.raises(ValueError, match=f"version: version must be 1 or more, not {number}"):
        trio.run(registry.version, "s", number)
