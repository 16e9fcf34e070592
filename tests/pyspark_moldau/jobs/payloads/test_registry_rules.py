"""Goal: a process keeps few schemas of a registry, leaves no connection open, and shows its login to no other host.

Method: answers in memory, and two servers of which one leads to the other.
"""

import email.message
import http.server
import io
import json
import threading
import urllib.error

import pytest

from pyspark_moldau.jobs.errors import JobError, PoisonError
from pyspark_moldau.jobs.payloads import avro_codec
from pyspark_moldau.jobs.payloads.avro_codec import SCHEMAS_MAX, Registry

SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
ANSWER = {"schema": json.dumps(SCHEMA)}


@pytest.fixture
def answers(monkeypatch):
    """Sets what the registry answers for each id, and returns the answers that were given."""
    given = []

    def urlopen(request, timeout):
        number = int(request.full_url.rpartition("/")[2])
        found = ANSWER if number % 2 else (404, {"error_code": 40403})
        if isinstance(found, tuple):
            body = io.BytesIO(json.dumps(found[1]).encode())
            given.append(body)
            raise urllib.error.HTTPError(request.full_url, found[0], "", email.message.Message(), body)
        given.append(io.BytesIO(json.dumps(found).encode()))
        return given[-1]

    monkeypatch.setattr(avro_codec.urllib.request, "urlopen", urlopen)
    return given


def test_a_process_keeps_a_bounded_number_of_ids(answers):
    """Known and unknown ones: damaged values have any number in the place of an id."""
    registry = Registry("http://registry")
    for number in range(3 * SCHEMAS_MAX):
        if number % 2:
            assert registry.schema(number)["name"] == "R"
        else:
            with pytest.raises(PoisonError, match=f"the registry has no Avro schema with id {number}$"):
                registry.schema(number)
        assert len(registry._known) + len(registry._unknown) <= SCHEMAS_MAX
    assert len(answers) == 3 * SCHEMAS_MAX
    assert all(each.closed for each in answers), "each holds a connection"


@pytest.mark.parametrize(
    ("code", "body", "message"),
    [
        (404, {"error_code": 404}, r"answers 404; check the address, and that it is a registry$"),
        (404, "no JSON", r"answers 404; check the address"),
        (404, [], r"answers 404; check the address"),
        (401, {"error_code": 40101}, r"answers 401; its login is user:password@ in the address$"),
        (403, {"error_code": 40403}, r"answers 403$"),
        (503, {}, r"answers 503$"),
    ],
)
def test_a_refusal_that_is_no_answer_ends_the_task(monkeypatch, code, body, message):
    """Its records may be right, so none of them is a dead letter."""
    text = io.BytesIO((body if isinstance(body, str) else json.dumps(body)).encode())

    def urlopen(request, timeout):
        raise urllib.error.HTTPError(request.full_url, code, "", email.message.Message(), text)

    monkeypatch.setattr(avro_codec.urllib.request, "urlopen", urlopen)
    registry = Registry("http://registry", "al:p@ss")
    with pytest.raises(JobError, match=rf"^registry: http://registry/schemas/ids/7 {message}") as caught:
        registry.schema(7)
    assert not registry._unknown
    assert text.closed, "it holds a connection, and the error of a task may be kept for long"
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    "body", ["", "{", "[]", "7", "{}", '{"schema": 7}', '{"schema": "{"}', '{"schema": "\\"none\\""}']
)
def test_an_answer_that_holds_no_schema_ends_the_task(monkeypatch, body):
    monkeypatch.setattr(avro_codec.urllib.request, "urlopen", lambda *_, **__: io.BytesIO(body.encode()))
    with pytest.raises(JobError, match=r"^registry: http://registry/schemas/ids/7: .*; check the address, and that it"):
        Registry("http://registry").schema(7)


def test_a_login_is_not_shown_to_another_host():
    """A registry behind a proxy may lead elsewhere."""
    seen = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            seen[self.server.name] = self.headers["Authorization"]
            self.send_response(302 if self.server.name == "first" else 200)
            if self.server.name == "first":
                self.send_header("Location", f"http://localhost:{second.server_port}{self.path}")
            self.end_headers()
            self.wfile.write(json.dumps(ANSWER).encode())

        def log_message(self, *_):
            pass

    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as first,
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as second,
    ):
        first.name, second.name = "first", "second"
        threads = [threading.Thread(target=each.serve_forever, args=(0.01,)) for each in (first, second)]
        for thread in threads:
            thread.start()
        found = Registry(f"http://127.0.0.1:{first.server_port}", "al:p@ss").schema(7)
        for each in (first, second):
            each.shutdown()
        for thread in threads:
            thread.join()
    assert found["name"] == "R"
    assert (seen["first"], seen["second"]) == ("Basic YWw6cEBzcw==", None)
