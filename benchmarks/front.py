"""The part of S3 that nginx lacks: LIST and HEAD with checksums, in the standard library.

nginx sends it whatever is not the GET of an object, so no byte of a model passes through Python.
"""

import threading
import urllib.parse
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.sax.saxutils import escape


@dataclass(frozen=True, kw_only=True)
class StoredObject:
    """What HEAD tells of an object. ``crc64nvme`` is base64, over the whole object, as S3 writes it."""

    size_bytes: int
    modified_s: int
    crc64nvme: str

    @property
    def etag(self) -> str:
        """nginx's own form, so that its If-Match agrees with our HEAD: time and size in hexadecimal."""
        return f'"{self.modified_s:x}-{self.size_bytes:x}"'


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Status, headers and body of one answer; a HEAD's ``Content-Length`` is among the headers."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


def answer(objects: Mapping[str, StoredObject], bucket: str, method: str, target: str) -> Answer:
    """Pure: one request to one answer. ``objects`` is by key; ``target`` is path and query of the request line."""
    split = urllib.parse.urlsplit(target)
    name, _, key = urllib.parse.unquote(split.path).removeprefix("/").partition("/")
    query = dict(urllib.parse.parse_qsl(split.query, keep_blank_values=True))
    if name != bucket:
        return _error(404, "NoSuchBucket")
    if method == "HEAD" and not key:
        return Answer(status=200, headers={"Content-Length": "0"})
    if method == "HEAD":
        return _head(objects[key]) if key in objects else Answer(status=404, headers={"Content-Length": "0"})
    if method == "GET" and not key:
        if "location" in query:
            return _xml(200, "<LocationConstraint/>")
        if not {"versioning", "versions", "uploads", "policy", "acl"} & set(query):
            return _xml(200, _listing(objects, bucket, query))
    return _error(501, "NotImplemented")


def _head(stored: StoredObject) -> Answer:
    return Answer(
        status=200,
        headers={
            "Content-Length": str(stored.size_bytes),
            "Content-Type": "application/octet-stream",
            "ETag": stored.etag,
            "Last-Modified": formatdate(stored.modified_s, usegmt=True),
            "Accept-Ranges": "bytes",
            "x-amz-checksum-crc64nvme": stored.crc64nvme,
            "x-amz-checksum-type": "FULL_OBJECT",
        },
    )


def _listing(objects: Mapping[str, StoredObject], bucket: str, query: Mapping[str, str]) -> str:
    """ListObjects and ListObjectsV2 in one page; keys between the prefix and a delimiter are rolled up."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    quote = urllib.parse.quote if query.get("encoding-type") == "url" else escape
    contents: list[str] = []
    common: set[str] = set()
    for key in sorted(key for key in objects if key.startswith(prefix)):
        head, found, _ = key.removeprefix(prefix).partition(delimiter) if delimiter else (key, "", "")
        if found:
            common.add(f"{prefix}{head}{delimiter}")
        else:
            contents.append(_contents(quote(key), objects[key]))
    rolled = "".join(f"<CommonPrefixes><Prefix>{quote(item)}</Prefix></CommonPrefixes>" for item in sorted(common))
    encoding = "<EncodingType>url</EncodingType>" if query.get("encoding-type") == "url" else ""
    return (
        f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>{bucket}</Name>'
        f"<Prefix>{quote(prefix)}</Prefix><Delimiter>{quote(delimiter)}</Delimiter><MaxKeys>1000</MaxKeys>{encoding}"
        f"<KeyCount>{len(contents) + len(common)}</KeyCount><IsTruncated>false</IsTruncated>"
        f"{''.join(contents)}{rolled}</ListBucketResult>"
    )


def _contents(key: str, stored: StoredObject) -> str:
    return (
        f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        f"<ETag>{escape(stored.etag)}</ETag><Size>{stored.size_bytes}</Size>"
        "<StorageClass>STANDARD</StorageClass></Contents>"
    )


def _xml(status: int, document: str) -> Answer:
    body = f'<?xml version="1.0" encoding="UTF-8"?>{document}'.encode()
    return Answer(
        status=status, headers={"Content-Type": "application/xml", "Content-Length": str(len(body))}, body=body
    )


def _error(status: int, code: str) -> Answer:
    return _xml(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>")


@contextmanager
def front_server(objects: Mapping[str, StoredObject], bucket: str) -> Generator[int]:
    """The front on a free loopback port, in threads of this process; yields the port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # headers and body are two writes; together with delayed ACKs that costs 40 ms

        def do_GET(self) -> None:
            result = answer(objects, bucket, self.command, self.path)
            self.send_response(result.status)
            for name, value in result.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(result.body)

        do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - names that the standard library looks for

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
