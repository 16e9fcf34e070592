"""A small S3-compatible server in memory, with faults: it stands for a service in tests of the S3 store.

It serves what the store asks for: objects with ranges, listings in pages, deletions of many, multipart uploads. It
knows no signatures, only the id of the access key. ``faults`` decides what happens to each request.
"""

from __future__ import annotations

import hashlib
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator

ACCESS_KEY = "moldau-key"
PAGE = 1000
SILENCE_SECONDS = 60.0

NONE, REFUSED, LOST, SILENT, RESET = "none", "refused", "lost", "silent", "reset"
"""Fates of a request: done, refused with 503, done without an answer, not answered, not answered and closed at once."""


def no_fault(kind: str) -> str:
    """Lets every request succeed."""
    return NONE


@dataclass
class S3State:
    """The bucket, and what tests look at."""

    bucket: str = "bucket"
    objects: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    """Kinds of requests in order."""
    faults: Callable[[str], str] = no_fault
    lock: threading.Lock = field(default_factory=threading.Lock)
    released: threading.Event = field(default_factory=threading.Event)
    tokens: list[str] = field(default_factory=list)
    """Session tokens of the requests that had one."""
    regions: set[str] = field(default_factory=set)
    """Regions for which requests were signed."""
    scheme: str = "http"
    port: int = 0
    page: int = PAGE

    @property
    def url(self) -> str:
        """Returns the address of the server."""
        return f"{self.scheme}://127.0.0.1:{self.port}"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, state: S3State, context: ssl.SSLContext | None) -> None:
        self.state = state
        super().__init__(("127.0.0.1", 0), _Handler)
        state.port = self.server_port
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_side=True)

    def handle_error(self, request: object, client_address: object) -> None:
        """Says nothing about clients that have gone."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        """Says nothing."""

    def _serve(self) -> None:
        state = self.server.state
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        bucket, _, key = unquote(parts.path.removeprefix("/")).partition("/")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        kind = _kind(self.command, query, key)
        with state.lock:
            state.requests.append(kind)
            state.tokens.extend(self.headers.get_all("x-amz-security-token", ()))
        signer = self.headers.get("Authorization", "").partition("Credential=")[2].split("/")
        state.regions.update(signer[2:3])
        if signer[0] != ACCESS_KEY:
            self._answer(403, _error("InvalidAccessKeyId"))
            return
        if bucket != state.bucket:
            self._answer(404, _error("NoSuchBucket"))
            return
        fate = state.faults(kind)
        if fate == REFUSED:
            self._answer(503, _error("SlowDown"))
        elif fate in (SILENT, RESET):
            if fate == SILENT:
                state.released.wait(SILENCE_SECONDS)
            self.close_connection = True
        else:
            with state.lock:
                code, answer, headers = _ACTIONS[kind](state, key, query, body, self.headers.get("Range"))
            if fate == LOST:
                self.close_connection = True
            else:
                self._answer(code, answer, headers)

    def _answer(self, code: int, answer: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if "Content-Length" not in (headers or {}):
            self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve


def _kind(method: str, query: dict[str, str], key: str) -> str:
    if method == "GET":
        return "list" if not key else "read"
    if method == "POST":
        return "delete many" if "delete" in query else "begin" if "uploads" in query else "complete"
    if method == "PUT":
        return "part" if "uploadId" in query else "put"
    return {"DELETE": "abort" if "uploadId" in query else "delete", "HEAD": "head"}[method]


Answer = tuple[int, bytes, dict[str, str]]


def _error(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()


def _etag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


def _put(state: S3State, key: str, query: dict[str, str], body: bytes, range_: str | None) -> Answer:
    state.objects[key] = (body, time.time())
    return 200, b"", {"ETag": _etag(body)}


def _headers(content: bytes, modified: float) -> dict[str, str]:
    moment = datetime.fromtimestamp(modified, UTC)
    return {"ETag": _etag(content), "Last-Modified": moment.strftime("%a, %d %b %Y %H:%M:%S GMT")}


def _read(state: S3State, key: str, query: dict[str, str], body: bytes, range_: str | None) -> Answer:
    if key not in state.objects:
        return 404, _error("NoSuchKey"), {}
    content, modified = state.objects[key]
    headers = _headers(content, modified)
    if range_ is None:
        return 200, content, headers
    first, _, last = range_.removeprefix("bytes=").partition("-")
    start, end = int(first), min(int(last or len(content)), len(content) - 1)
    if start >= len(content):
        return 416, _error("InvalidRange"), {"Content-Range": f"bytes */{len(content)}"}
    headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
    return 206, content[start : end + 1], headers


def _head(state: S3State, key: str, query: dict[str, str], body: bytes, range_: str | None) -> Answer:
    if key not in state.objects:
        return 404, b"", {}
    content, modified = state.objects[key]
    return 200, b"", {**_headers(content, modified), "Content-Length": str(len(content))}


def _delete(state: S3State, key: str, query: dict[str, str], body: bytes, range_: str | None) -> Answer:
    state.objects.pop(key, None)
    return 204, b"", {}


def _delete_many(state: S3State, key: str, query: dict[str, str], body: bytes, range_: str | None) -> Answer:
    found = [element.text or "" for element in ElementTree.fromstring(body).iter() if element.tag.endswith("Key")]
    for name in found:
        state.objects.pop(name, None)
    deleted = "".join(f"<Deleted><Key>{escape(name)}</Key></Deleted>" for name in found)
    return 200, f"<?xml version='1.0'?><DeleteResult>{deleted}</DeleteResult>".encode(), {}


def _list(state: S3State, key: str, query: dict[str, str], body: bytes, range_: str | None) -> Answer:
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    after = query.get("continuation-token") or query.get("start-after", "")
    most = min(state.page, int(query.get("max-keys", PAGE)))
    entries: list[tuple[str, str]] = []
    folders: set[str] = set()
    last, more = "", False
    for name in sorted(state.objects):
        if not name.startswith(prefix) or name <= after:
            continue
        folder = prefix + name[len(prefix) :].partition(delimiter)[0] + delimiter if delimiter else ""
        is_folder = bool(delimiter) and delimiter in name[len(prefix) :]
        if is_folder and (folder in folders or after.startswith(folder)):
            last = name
            continue
        if len(entries) == most:
            more = True
            break
        last = name
        if is_folder:
            folders.add(folder)
            entries.append(("folder", folder))
        else:
            entries.append(("object", name))
    text = "".join(
        f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
        if kind == "folder"
        else _contents(name, *state.objects[name])
        for kind, name in entries
    )
    token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if more else ""
    truncated = "true" if more else "false"
    result = f"<IsTruncated>{truncated}</IsTruncated><KeyCount>{len(entries)}</KeyCount>{text}{token}"
    return 200, f"<?xml version='1.0'?><ListBucketResult>{result}</ListBucketResult>".encode(), {}


def _contents(name: str, content: bytes, modified: float) -> str:
    moment = datetime.fromtimestamp(modified, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return (
        f"<Contents><Key>{escape(name)}</Key><LastModified>{moment}</LastModified><ETag>{_etag(content)}</ETag>"
        f"<Size>{len(content)}</Size></Contents>"
    )


def _begin(state: S3State, key: str, query: dict[str, str], body: bytes, range_: str | None) -> Answer:
    upload = f"upload-{len(state.requests)}"
    state.uploads[upload] = {}
    result = f"<UploadId>{upload}</UploadId>"
    return (
        200,
        f"<?xml version='1.0'?><InitiateMultipartUploadResult>{result}</InitiateMultipartUploadResult>".encode(),
        {},
    )


def _part(state: S3State, key: str, query: dict[str, str], body: bytes, range_: str | None) -> Answer:
    if query["uploadId"] not in state.uploads:
        return 404, _error("NoSuchUpload"), {}
    state.uploads[query["uploadId"]][int(query["partNumber"])] = body
    return 200, b"", {"ETag": _etag(body)}


def _complete(state: S3State, key: str, query: dict[str, str], body: bytes, range_: str | None) -> Answer:
    parts = state.uploads.pop(query["uploadId"], None)
    if parts is None:
        return 404, _error("NoSuchUpload"), {}
    content = b"".join(parts[number] for number in sorted(parts))
    state.objects[key] = (content, time.time())
    result = f"<ETag>{escape(_etag(content))}</ETag>"
    return (
        200,
        f"<?xml version='1.0'?><CompleteMultipartUploadResult>{result}</CompleteMultipartUploadResult>".encode(),
        {},
    )


def _abort(state: S3State, key: str, query: dict[str, str], body: bytes, range_: str | None) -> Answer:
    return (
        (204, b"", {}) if state.uploads.pop(query["uploadId"], None) is not None else (404, _error("NoSuchUpload"), {})
    )


_ACTIONS: dict[str, Callable[[S3State, str, dict[str, str], bytes, str | None], Answer]] = {
    "put": _put,
    "read": _read,
    "head": _head,
    "delete": _delete,
    "delete many": _delete_many,
    "list": _list,
    "begin": _begin,
    "part": _part,
    "complete": _complete,
    "abort": _abort,
}


@contextmanager
def s3_server(context: ssl.SSLContext | None = None) -> Iterator[S3State]:
    """Runs a server with an empty bucket until the block ends."""
    state = S3State()
    server = _Server(state, context)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
