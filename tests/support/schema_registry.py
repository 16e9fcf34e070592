"""A schema registry for tests: the REST contract of Confluent's registry over real HTTP, with its state in memory.

Equal schemas have one id in all subjects. It checks no compatibility: a test names the subjects that refuse schemas.
"""

from __future__ import annotations

import base64
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


class Refused(Exception):
    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class RegistryState:
    """Subjects, versions and ids; ``requests`` lists method and path of each request."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}
        self.by_id: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.incompatible: set[str] = set()
        self.failures: list[int] = []  # statuses of the next answers
        self.requests: list[tuple[str, str]] = []
        self.authorization: str | None = None
        self.lock = threading.Lock()

    def require_basic(self, user_info: str) -> None:
        self.authorization = "Basic " + base64.b64encode(user_info.encode()).decode()

    def answer(self, method: str, target: str, authorization: str | None, body: dict[str, Any]) -> Any:
        parts = urlsplit(target)
        steps = [unquote(step) for step in parts.path.strip("/").split("/")]
        with self.lock:
            self.requests.append((method, parts.path))
            if self.failures:
                raise Refused(self.failures.pop(0), 50001, "a failure that the test asked for")
            if self.authorization is not None and authorization != self.authorization:
                raise Refused(401, 401, "Unauthorized")
            return self.route(method, steps, parse_qs(parts.query), body)

    def route(self, method: str, steps: list[str], query: dict[str, list[str]], body: dict[str, Any]) -> Any:
        match method, steps:
            case "GET", ["subjects"]:
                return sorted(self.subjects)
            case "POST", ["subjects", subject, "versions"]:
                return {"id": self.register(subject, body)}
            case "POST", ["subjects", subject]:
                return self.look_up(subject, body)
            case "GET", ["subjects", subject, "versions"]:
                return [number + 1 for number in range(len(self.of(subject)))]
            case "GET", ["subjects", subject, "versions", version]:
                return self.version(subject, version)
            case "GET", ["schemas", "ids", number]:
                if int(number) not in self.by_id:
                    raise Refused(404, 40403, f"Schema {number} not found")
                return self.by_id[int(number)]
            case "POST", ["compatibility", "subjects", subject, "versions", _]:
                return {"is_compatible": subject not in self.incompatible}
        raise Refused(404, 404, f"no such resource: {method} {'/'.join(steps)}")

    def of(self, subject: str) -> list[int]:
        if subject not in self.subjects:
            raise Refused(404, 40401, f"Subject '{subject}' not found.")
        return self.subjects[subject]

    def stored(self, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        document = {"schema": body["schema"]}
        if body.get("schemaType", "AVRO") != "AVRO":
            document["schemaType"] = body["schemaType"]
        if body.get("references"):
            document["references"] = body["references"]
        return json.dumps(document, sort_keys=True), document

    def register(self, subject: str, body: dict[str, Any]) -> int:
        if subject in self.incompatible:
            raise Refused(409, 409, "Schema being registered is incompatible with an earlier schema")
        key, document = self.stored(body)
        for each in body.get("references") or ():
            self.version(each["subject"], str(each["version"]))
        number = self.ids.setdefault(key, len(self.ids) + 1)
        self.by_id[number] = document
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def look_up(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        versions = self.of(subject)
        number = self.ids.get(self.stored(body)[0])
        if number not in versions:
            raise Refused(404, 40403, "Schema not found")
        return self.version(subject, str(versions.index(number) + 1))

    def version(self, subject: str, version: str) -> dict[str, Any]:
        versions = self.of(subject)
        number = len(versions) if version == "latest" else int(version)
        if not 1 <= number <= len(versions):
            raise Refused(404, 40402, f"Version {version} not found.")
        schema_id = versions[number - 1]
        return {"subject": subject, "version": number, "id": schema_id, **self.by_id[schema_id]}


class LocalRegistry:
    def __init__(self, url: str, state: RegistryState) -> None:
        self.url = url
        self.state = state


@contextmanager
def schema_registry(tls: ssl.SSLContext | None = None) -> Iterator[LocalRegistry]:
    """Serves a registry on a free port of 127.0.0.1."""
    state = RegistryState()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            """Logs nothing."""

        def serve(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length)) if length else {}
            try:
                status, document = 200, state.answer(self.command, self.path, self.headers.get("authorization"), body)
            except Refused as refused:
                status, document = refused.status, {"error_code": refused.code, "message": refused.message}
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("content-type", CONTENT_TYPE)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = serve

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        scheme = "http" if tls is None else "https"
        yield LocalRegistry(f"{scheme}://localhost:{server.server_port}", state)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
