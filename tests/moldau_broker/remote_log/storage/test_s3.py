"""Goal: an S3 service that fails or loses answers leaves no half object, no upload and no caller that waits.

Method: a small server with faults; the limit of a request is short, and so are the parts of an upload, so that only a
request with a fault reaches the limit.
"""

import ssl
import sys

import pytest
import trio
import trustme

from moldau.runtime.config import ConfigError
from moldau.runtime.ports.objects import ObjectNotFoundError, ObjectStoreError
from moldau.runtime.ports.real import real_environment
from moldau_broker.remote_log.storage import s3
from support.objects.s3_server import LOST, NONE, REFUSED, RESET, SILENT, s3_server
from support.objects.stores import Bytes, keys_of, opened

PART_BYTES = 8 * 1024
LARGE = bytes(range(256)) * 80  # 20 KiB: three parts


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(s3, "PART_BYTES", PART_BYTES)
    monkeypatch.setattr(s3, "REQUEST_SECONDS", 0.6)
    monkeypatch.setattr(s3, "RETRIES_MAX", 1)
    monkeypatch.setattr(s3, "RETRY_SECONDS", 2)
    with s3_server() as state:
        yield state


def run(server, test, url="s3://bucket", **keys):
    async def main():
        await test(opened(real_environment(1), url, **{**keys_of(server.url), **keys}))

    trio.run(main)


async def ends_soon(condition):
    with trio.fail_after(20):
        while not condition():  # noqa: ASYNC110 - a thread of the server changes it
            await trio.sleep(0.01)


def faulty(kind, fate):
    return lambda asked: fate if asked == kind else NONE


def test_a_large_content_is_read_part_by_part(server):
    class Counting(Bytes):
        reads = ()

        def read(self, position, count):
            self.reads += ((position, count),)
            return super().read(position, count)

    async def test(store):
        content = Counting(LARGE)
        await store.put("c/a", content)
        assert [count for _, count in content.reads] == [PART_BYTES, PART_BYTES, len(LARGE) - 2 * PART_BYTES]
        assert server.objects["c/a"][0] == LARGE
        assert server.uploads == {}

    run(server, test)


def test_a_service_at_an_address_has_the_bucket_in_the_path(server):
    """No address can have the name of a bucket before it."""

    async def test(store):
        await store.put("c/a", Bytes(b"abc"))
        assert await store.read("c/a", 0, 3) == b"abc"
        assert [one.name for one in await store.list("c/")] == ["c/a"]

    run(server, test, **{"remote.log.storage.s3.path.style.access": "false"})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "2130706433"])
@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_a_variable_of_aws_names_the_service(server, monkeypatch, variable, host):
    """The library would leave the bucket out of the address; each name that ends in a number is an address."""
    monkeypatch.setenv(variable, server.url.replace("127.0.0.1", host))

    async def main():
        keys = keys_of(server.url)
        del keys["remote.log.storage.s3.endpoint.url"]
        keys["remote.log.storage.s3.path.style.access"] = "false"
        await opened(real_environment(1), "s3://bucket", **keys).put("c/a", Bytes(b"abc"))
        assert server.objects["c/a"][0] == b"abc"

    trio.run(main)


def test_an_empty_key_is_none(server):
    """A node's variable that is passed on and not set is such a key; TLS of listeners takes it so, too."""

    async def test(store):
        await store.put("c/a", Bytes(b"abc"))
        assert server.regions == {"us-east-1"}

    keys = ("region", "truststore.location")
    run(server, test, **{f"remote.log.storage.s3.{key}": "" for key in keys})


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", ""])
def test_the_address_of_the_file_precedes_a_variable(server, monkeypatch, address):
    """The library takes the variable of S3 before the address that it is given, and panics if it is empty."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", address)

    async def test(store):
        await store.put("c/a", Bytes(b"abc"))
        assert server.objects["c/a"][0] == b"abc"

    run(server, test)


def test_an_empty_variable_of_aws_is_none(server, monkeypatch):
    """Files of containers pass variables on that are not set; the library signed for no region."""
    monkeypatch.setenv("AWS_REGION", "")

    async def test(store):
        await store.put("c/a", Bytes(b"abc"))
        assert server.regions == {"us-east-1"}

    run(server, test)


def test_an_empty_key_of_aws_leaves_the_role(server, monkeypatch):
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(variable, "")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/no/token")
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/moldau")

    async def main():
        keys = {name: value for name, value in keys_of(server.url).items() if "key" not in name}
        with pytest.raises(ObjectStoreError, match=r"token file '/no/token'"):
            await opened(real_environment(1), "s3://bucket", **keys).list("c/")

    trio.run(main)


def test_no_proxy_for_all_hosts_is_none_for_an_address(server, monkeypatch):
    """The library applies a ``*`` to names alone."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "*")

    async def test(store):
        await store.put("c/a", Bytes(b"abc"))
        assert server.objects["c/a"][0] == b"abc"

    run(server, test)


@pytest.mark.parametrize(("variable", "named"), [("HTTP_PROXY", True), ("https_proxy", False)])
def test_a_proxy_is_named_where_no_answer_comes(server, monkeypatch, variable, named):
    """The refusal of a proxy looked like that of the service, which ran."""
    monkeypatch.setenv(variable, "http://u:p4ss@127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)

    async def test(store):
        with pytest.raises(ObjectStoreError, match=r"Connection refused") as caught:
            await store.list("c/")
        assert (f"and the proxy of {variable}" in str(caught.value)) is named
        assert "p4ss" not in str(caught.value)

    run(server, test, **({} if named else keys_of("http://127.0.0.1:1")))


def test_a_host_with_other_letters_is_sent_in_ascii(server):
    async def test(store):
        with pytest.raises(ObjectStoreError, match=r"xn--bcher-kva\.invalid"):
            await store.list("c/")

    run(server, test, **{"remote.log.storage.s3.endpoint.url": "http://bücher.invalid:9000"})


def test_a_panic_of_the_library_is_an_error_of_the_store(server):
    """It is no ``Exception``, so a broker would end."""

    async def test(store):
        with pytest.raises(ObjectStoreError, match=r"the library of the store failed: .*InvalidIpv4Address"):
            await store.list("c/")

    keys = {"endpoint.url": "http://10.0.0.256:9000", "path.style.access": "false"}
    run(server, test, **{f"remote.log.storage.s3.{name}": value for name, value in keys.items()})


@pytest.mark.parametrize("fate", [REFUSED, SILENT, RESET])
@pytest.mark.parametrize("kind", ["begin", "part", "complete"])
def test_a_failed_upload_makes_no_object_and_is_aborted(server, kind, fate):
    async def test(store):
        server.faults = faulty(kind, fate)
        with pytest.raises(ObjectStoreError):
            await store.put("c/a", Bytes(LARGE))
        assert server.objects == {}
        assert server.uploads == {}
        server.faults = faulty("", NONE)
        await store.put("c/a", Bytes(LARGE))
        assert await store.read("c/a", len(LARGE) - 3, 9) == LARGE[-3:]

    run(server, test)


def test_an_object_whose_answer_was_lost_exists(server):
    async def test(store):
        for kind, content in (("put", b"small"), ("complete", LARGE)):
            server.faults = faulty(kind, LOST)
            with pytest.raises(ObjectStoreError):
                await store.put(f"c/{kind}", Bytes(content))
            server.faults = faulty("", NONE)
            assert await store.read(f"c/{kind}", 0, len(content)) == content
            await store.put(f"c/{kind}", Bytes(content))

    run(server, test)


@pytest.mark.parametrize("fate", [REFUSED, SILENT, RESET, LOST])
def test_a_request_without_answer_is_an_error_in_time(server, fate):
    async def test(store):
        await store.put("c/a", Bytes(b"x"))
        calls = {
            "read": lambda: store.read("c/a", 0, 1),
            "list": lambda: store.list("c/"),
            "delete many": lambda: store.delete(["c/b"]),
        }
        for kind, call in calls.items():
            server.faults = faulty(kind, fate)
            with trio.fail_after(10), pytest.raises(ObjectStoreError) as caught:
                await call()
            assert not isinstance(caught.value, ObjectNotFoundError)
            assert "Debug source" not in str(caught.value)

    run(server, test)


def test_a_passing_error_is_tried_again(server):
    async def test(store):
        first = iter([REFUSED])
        server.faults = lambda kind: next(first, NONE)
        await store.put("c/a", Bytes(b"x"))
        assert server.requests == ["put", "put"]

    run(server, test)


def test_a_cancelled_put_returns_at_once_and_is_aborted(server, monkeypatch):
    monkeypatch.setattr(s3, "REQUEST_SECONDS", 5)

    async def test(store):
        server.faults = faulty("part", SILENT)
        content = Bytes(LARGE)
        with trio.move_on_after(0.5) as scope:
            await store.put("c/a", content)
        assert scope.cancelled_caught
        server.faults = faulty("", NONE)
        server.released.set()
        await ends_soon(lambda: "abort" in server.requests)
        assert server.objects == {}
        assert server.uploads == {}

    run(server, test)


def test_a_content_that_fails_in_its_middle_aborts_the_upload(server):
    class Failing(Bytes):
        def read(self, position, count):
            if position:
                raise OSError(5, "the disk failed")
            return super().read(position, count)

    async def test(store):
        with pytest.raises(OSError, match="the disk failed"):
            await store.put("c/a", Failing(LARGE))
        assert server.requests[-1] == "abort"
        assert server.objects == {}
        assert server.uploads == {}

    run(server, test)


def test_a_silent_service_has_a_bounded_number_of_threads(server, monkeypatch):
    monkeypatch.setattr(s3, "CALLS_MAX", 2)
    monkeypatch.setattr(s3, "CALL_SECONDS", 0.2)
    monkeypatch.setattr(s3, "REQUEST_SECONDS", 5)

    async def test(store):
        server.faults = faulty("read", SILENT)
        for _ in range(4):
            with pytest.raises(ObjectStoreError, match="did not answer"):
                await store._call(lambda: store._read("c/a", 0, 1), 0.2)
        assert server.requests.count("read") == 2
        server.faults = faulty("", NONE)
        server.released.set()
        with trio.fail_after(20):
            assert await store._call(lambda: 1, 15) == 1

    run(server, test)


def test_a_missing_bucket_has_not_lost_its_objects(server):
    async def test(store):
        server.bucket = "other"
        for call in (lambda: store.read("c/a", 0, 1), lambda: store.read("c/a", 0, 0), lambda: store.list("c/")):
            with pytest.raises(ObjectStoreError) as caught:
                await call()
            assert not isinstance(caught.value, ObjectNotFoundError)
            assert "404 Not Found, NoSuchBucket" in str(caught.value)
            assert str(caught.value).endswith("make the bucket, or correct remote.log.storage.url")

    run(server, test)


def test_a_refused_key_is_an_error_that_shows_no_secret(server):
    async def test(store):
        with pytest.raises(ObjectStoreError) as caught:
            await store.list("c/")
        assert "403 Forbidden, InvalidAccessKeyId" in str(caught.value)
        assert "check remote.log.storage.s3.access.key.id" in str(caught.value)
        assert "secret" not in str(caught.value).replace("remote.log.storage.s3.secret.access.key", "")

    run(server, test, **keys_of(server.url, "unknown"))


def test_a_service_that_cannot_be_reached_is_named(server):
    async def test(store):
        with pytest.raises(
            ObjectStoreError, match=r"Connection refused \(GET http://127.0.0.1:1/bucket\); check .*url"
        ):
            await store.list("a-long-folder/" * 20)

    run(server, test, **keys_of("http://127.0.0.1:1"))


def test_names_that_no_broker_writes_are_left_out(server):
    async def test(store):
        server.objects.update({"c/a": (b"", 0.0), "c/b~": (b"", 0.0), "c/b c": (b"", 0.0), "d e/f": (b"", 0.0)})
        assert [item.name for item in await store.list("")] == ["c/a"]
        assert list(await store.list_folders("")) == ["c"]

    run(server, test)


def test_a_page_of_other_names_is_not_the_end(server, monkeypatch):
    """A listing that ended there lacked what brokers had written behind it, such as the whole log of a partition."""
    monkeypatch.setattr(s3, "LISTED_MAX", 2)

    async def test(store):
        for name in ("c/t/a 1", "c/t/a 2", "c/t/a 3", "c/u/ 1", "c/u/ 2"):
            server.objects[name] = (b"x", 0)
        await store.put("c/t/b", Bytes(b"b"))
        assert [found.name for found in await store.list("c/t/")] == ["c/t/b"]
        assert [found.name for found in await store.list("c/t/", after="c/t/a")] == ["c/t/b"]
        assert list(await store.list("c/t/", after="c/t/b")) == []

    run(server, test)


def test_short_pages_of_a_service_are_followed(server):
    async def test(store):
        server.page = 3
        for number in range(10):
            server.objects[f"c/{number}"] = (b"", 0.0)
        found: list[str] = []
        while page := await store.list("c/", after=found[-1] if found else ""):
            found += [item.name for item in page]
        assert found == [f"c/{number}" for number in range(10)]

    run(server, test)


def test_keys_of_a_file_take_no_token_of_the_environment(server, monkeypatch):
    """A session token belongs to the key of the same source; another key with it is refused."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-another-key")

    async def test(store):
        await store.put("c/a", Bytes(b"x"))
        assert "of-another-key" not in server.tokens

    run(server, test)


def test_a_private_authority_is_trusted_if_it_is_named(tmp_path, monkeypatch):
    """Also by a path that begins at the working directory, and with a byte order mark."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    (tmp_path / "marked.pem").write_bytes(b"\xef\xbb\xbf" + authority.cert_pem.bytes())
    monkeypatch.chdir(tmp_path)

    async def works(store):
        await store.put("c/a", Bytes(b"x"))
        assert await store.read("c/a", 0, 1) == b"x"

    async def fails(store):
        with pytest.raises(ObjectStoreError, match=r"certificate is not trusted.*; name .*truststore\.location"):
            await store.put("c/a", Bytes(b"x"))

    with s3_server(context) as server:
        server.scheme = "https"
        for path in (str(tmp_path / "ca.pem"), "ca.pem", "marked.pem"):
            run(server, works, **{"remote.log.storage.s3.truststore.location": path})
        run(server, fails)


def test_a_service_without_tls_is_named(server):
    async def test(store):
        with pytest.raises(ObjectStoreError, match=r"the answer is not TLS .*; correct .*endpoint\.url"):
            await store.put("c/a", Bytes(b"x"))

    server.scheme = "https"
    run(server, test)


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(ConfigError, match=r"pip install 'moldau\[s3\]'"):
        opened(real_environment(1), "s3://bucket")
