"""Registries of images: the CNCF's, and by day a double, whose answers the same tests compare with those."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.x509 import load_pem_x509_certificate

from tests.testbed.certificates import Authority, Credential
from tests.testbed.daemon import Daemon
from tests.testbed.web import answering, free_port, socket_health
from tests.tools import bin_folder

LOGIN = base64.b64encode(b"ada:lace").decode()  # as docker's configuration has it
_HASH = "$2a$04$H1zXdkRo4/ZJvplWxEhbKehKOI3iLBHmisUkxTiZOMd3xSTQV1LD6"  # of the password, for the real one
_BLOB = re.compile(r"/v2/(.+)/blobs/(sha256:[0-9a-f]{64})")
_UPLOAD = re.compile(r"/v2/(.+)/blobs/uploads/([\w-]*)")
_MANIFEST = re.compile(r"/v2/(.+)/manifests/(.+)")
_REFERRERS = re.compile(r"/v2/(.+)/referrers/(.+)")
_TAGS = re.compile(r"/v2/(.+)/tags/list")


@dataclass
class Registry:
    """A registry at *host*; *replace* lets a blob have other bytes, as a rotten disk does."""

    host: str
    replace: Callable[[str, bytes], None]
    tokens: Tokens | None = None
    data: Double | None = None


class Tokens:
    """A service that signs a token for what a registry asks for; *scopes* has what was asked, and by whom."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self._credential: Credential = self.authority.issue("tokens")
        self.scopes: list[tuple[str, bool]] = []
        self.given: dict[str, set[str]] = {}  # actions by token
        self.url = ""

    def token(self, scope: str, service: str) -> str:
        """A token of *service* for a scope, such as ``repository:team/digits:pull,push``."""
        kind, name, actions = scope.split(":")
        claims = {
            "iss": "tokens",
            "sub": "ada",
            "aud": service,
            "exp": int(time.time()) + 600,
            "nbf": int(time.time()) - 600,
            "iat": int(time.time()),
            "jti": uuid.uuid4().hex,
            "access": [{"type": kind, "name": name, "actions": actions.split(",")}],
        }
        certificate = load_pem_x509_certificate(self._credential.certificate.read_bytes())
        chain = base64.b64encode(certificate.public_bytes(serialization.Encoding.DER)).decode()
        head = {"typ": "JWT", "alg": "ES256", "x5c": [chain]}
        text = ".".join(_encoded(json.dumps(each).encode()) for each in (head, claims))
        key = serialization.load_pem_private_key(self._credential.key.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        numbers = decode_dss_signature(key.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
        signed = f"{text}.{_encoded(b''.join(number.to_bytes(32, 'big') for number in numbers))}"
        self.given[signed] = set(actions.split(","))
        return signed


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words: object) -> None:
        pass

    def answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def refuse(self, status: int, code: str, **headers: str) -> None:
        content = {"errors": [{"code": code, "message": code.lower().replace("_", " "), "detail": None}]}
        noise = self.data.noise if hasattr(self, "data") else b""
        self.answer(status, noise or json.dumps(content).encode(), Content_Type="application/json", **headers)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))


class _TokenHandler(_Handler):
    tokens: Tokens

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        scope, known = query["scope"][0], self.headers.get("Authorization") == f"Basic {LOGIN}"
        self.tokens.scopes.append((scope, known))
        if not known:
            return self.refuse(401, "UNAUTHORIZED")
        return self.answer(200, json.dumps({"token": self.tokens.token(scope, query["service"][0])}).encode())


def upload_place(host: str, name: str, number: str) -> str:
    """Where a client shall send a blob."""
    return f"http://{host}/v2/{name}/blobs/uploads/{number}?_state=x%3D"


@dataclass
class Double:
    """What a registry has in memory: blobs, and manifests by repository and by tag or digest."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[tuple[str, str], tuple[str, bytes]] = field(default_factory=dict)
    uploads: set[str] = field(default_factory=set)
    page: int = 1000  # entries of a list in one answer, as of the CNCF's
    noise: bytes = b""  # in the body of each refusal
    has_referrers: bool = False  # whether it has the API for them, which the CNCF's has not
    others: list[tuple[str, str, bytes]] = field(default_factory=list)  # that come right after: tag, type and content
    storage: str | None = None  # another host, to which clients are sent for the content of blobs
    logins: list[str | None] = field(default_factory=list)  # that this one got
    faults: list[tuple[str, int]] = field(default_factory=list)  # the next ones: method, and status or 0 for a cut


class _RegistryHandler(_Handler):
    data: Double
    login: str
    tokens: Tokens | None

    def allowed(self, name: str) -> bool:
        given = self.headers.get("Authorization", "")
        actions = {"pull"} if self.command in ("GET", "HEAD") else {"pull", "push"}
        if self.tokens:
            if actions <= self.tokens.given.get(given.removeprefix("Bearer "), set()):
                return True
            scope = f"repository:{name}:{','.join(sorted(actions))}"
            challenge = f'Bearer realm="{self.tokens.url}",service="double",scope="{scope}"'
        elif not self.login or given == f"Basic {self.login}":
            return True
        else:
            challenge = 'Basic realm="double"'
        self.body()
        self.refuse(401, "UNAUTHORIZED", WWW_Authenticate=challenge)
        return False

    def handle_one(self) -> None:
        path = urlsplit(self.path).path
        if self.data.faults and self.data.faults[0][0] == self.command:
            self.fail(self.data.faults.pop(0)[1])
            return
        for pattern, step in (
            (_UPLOAD, self.upload),
            (_BLOB, self.blob),
            (_MANIFEST, self.manifest),
            (_TAGS, self.tags),
            (_REFERRERS, self.referrers),
        ):
            if match := pattern.fullmatch(path):
                if self.allowed(match[1]):
                    step(*match.groups())
                return
        self.refuse(404, "UNSUPPORTED")

    do_GET = do_HEAD = do_POST = do_PUT = handle_one

    def fail(self, status: int) -> None:
        """A refusal, or of a connection that breaks half of a content."""
        if status:
            self.body()
            self.refuse(status, "OUT_OF_ORDER")
            return
        if self.command == "GET":
            content = self.data.blobs.get(self.path.rpartition("/")[2], b"1234")
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2])
        self.close_connection = True

    def upload(self, name: str, number: str) -> None:
        if self.command == "POST":
            self.data.uploads.add(number := uuid.uuid4().hex)
            host = self.data.storage or self.headers["Host"]
            return self.answer(202, Location=upload_place(host, name, number))
        query, content = parse_qs(urlsplit(self.path).query), self.body()
        if number not in self.data.uploads or query.get("_state") != ["x="]:
            return self.refuse(404, "BLOB_UPLOAD_UNKNOWN")
        self.data.uploads.remove(number)
        digest = query["digest"][0]
        if digest != f"sha256:{hashlib.sha256(content).hexdigest()}":
            return self.refuse(400, "DIGEST_INVALID")
        self.data.blobs[digest] = content
        return self.answer(201, Docker_Content_Digest=digest)

    def blob(self, name: str, digest: str) -> None:
        if digest not in self.data.blobs:
            return self.refuse(404, "BLOB_UNKNOWN")
        if self.data.storage and self.command == "GET":
            return self.answer(307, Location=f"http://{self.data.storage}{self.path}")
        return self.answer(200, self.data.blobs[digest], Docker_Content_Digest=digest)

    def manifest(self, name: str, label: str) -> None:
        if self.command == "PUT":
            content = self.body()
            values, digest = json.loads(content), f"sha256:{hashlib.sha256(content).hexdigest()}"
            if ":" in label and label != digest:
                return self.refuse(400, "DIGEST_INVALID")
            parts = [*filter(None, [values.get("config")]), *values.get("layers", ())]
            if any(each["digest"] not in self.data.blobs for each in parts):
                return self.refuse(404, "MANIFEST_BLOB_UNKNOWN")
            for each in (label, digest):
                self.data.manifests[name, each] = self.headers["Content-Type"], content
            if self.data.others and self.data.others[0][0] == label:
                self.data.manifests[name, label] = self.data.others.pop(0)[1:]
            listed = {"OCI_Subject": values["subject"]["digest"]} if self.has_list_of(values) else {}
            return self.answer(201, Docker_Content_Digest=digest, **listed)
        kind, content = self.data.manifests.get((name, label), ("", b""))
        if not content or kind not in self.headers["Accept"]:
            return self.refuse(404, "MANIFEST_UNKNOWN")
        return self.answer(200, content, Content_Type=kind)

    def has_list_of(self, values: Mapping[str, Any]) -> bool:
        return self.data.has_referrers and "subject" in values

    def referrers(self, name: str, digest: str) -> None:
        if not self.data.has_referrers:
            return self.refuse(404, "UNSUPPORTED")
        known = {label: json.loads(text) for (_, label), (_, text) in self.data.manifests.items() if ":" in label}
        found = [
            {"digest": label, "artifactType": values["artifactType"]}
            for label, values in known.items()
            if values.get("subject", {}).get("digest") == digest
        ]
        return self.listed("manifests", found)

    def listed(self, key: str, found: list[Any], **values: object) -> None:
        """One page of a list, with a link to the next one (RFC 8288), as the specification has for both lists."""
        first = int(parse_qs(urlsplit(self.path).query).get("first", ["0"])[0])
        end = first + self.data.page
        path = urlsplit(self.path).path
        more = {"Link": f'<{path}?first={end}>; rel="next"'} if end < len(found) else {}
        self.answer(200, json.dumps({**values, key: found[first:end]}).encode(), **more)

    def tags(self, name: str) -> None:
        found = sorted(tag for repository, tag in self.data.manifests if repository == name and ":" not in tag)
        if not found:
            return self.refuse(404, "NAME_UNKNOWN")
        return self.listed("tags", found, name=name)


class _StorageHandler(_RegistryHandler):
    """The storage behind a registry, which links with signatures lead to: it takes all requests, as they are."""

    def handle_one(self) -> None:
        self.data.logins.append(self.headers.get("Authorization"))
        storage, self.data.storage = self.data.storage, None
        super().handle_one()
        self.data.storage = storage

    do_GET = do_PUT = handle_one


@contextmanager
def storage_behind(registry: Registry) -> Iterator[Double]:
    """Let a registry send its clients to a storage for the content of blobs."""
    assert registry.data
    with _serving(_StorageHandler, data=registry.data, login="", tokens=None) as host:
        registry.data.storage = host
        yield registry.data


class _HostileHandler(_Handler):
    """Answers each request with the manifest, the entry, or for anything else with the same four bytes."""

    manifest: bytes
    entry: bytes

    def do_GET(self) -> None:
        is_entry = hashlib.sha256(self.entry).hexdigest() in self.path
        self.answer(200, self.manifest if "/manifests/" in self.path else self.entry if is_entry else b"evil")


@contextmanager
def hostile_registry(entry: bytes, layers: object) -> Iterator[str]:
    """A registry that gives what it likes: an image with these *layers*; its host."""
    with _serving(_HostileHandler, manifest=json.dumps({"layers": layers}).encode(), entry=entry) as host:
        yield host


class _Server(ThreadingHTTPServer):
    """A server whose clients may drop idle connections, of which a registry prints nothing on its client's terminal."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def _serving(handler: type[_Handler], **values: object) -> Iterator[str]:
    """A server of this handler, by its host and port."""
    with answering(_Server(("127.0.0.1", 0), type("Handler", (handler,), values))) as address:
        yield address


@contextmanager
def registry(folder: Path, real: bool, auth: str = "open") -> Iterator[Registry]:
    """A registry that is open to all, asks for a password (``basic``), or for a token (``token``)."""
    if auth != "token":
        with (_real if real else _double)(folder, auth == "basic", None) as found:
            yield found
        return
    tokens = Tokens(folder / "tokens")
    with _serving(_TokenHandler, tokens=tokens) as host:
        tokens.url = f"http://{host}/token"
        with (_real if real else _double)(folder, False, tokens) as found:
            yield found


@contextmanager
def _double(folder: Path, login: bool, tokens: Tokens | None) -> Iterator[Registry]:
    data = Double()
    with _serving(_RegistryHandler, data=data, login=LOGIN if login else "", tokens=tokens) as host:
        yield Registry(host, data.blobs.__setitem__, tokens, data)


@contextmanager
def _real(folder: Path, login: bool, tokens: Tokens | None) -> Iterator[Registry]:
    """CNCF distribution's `registry`, which scripts/tools builds."""
    place, address = folder / "registry", f"127.0.0.1:{free_port()}"
    (folder / "htpasswd").write_text(f"ada:{_HASH}\n")
    auth: dict[str, object] = {}
    if login:
        auth = {"auth": {"htpasswd": {"realm": "test", "path": str(folder / "htpasswd")}}}
    if tokens:
        bundle = str(tokens.authority.certificate)
        service = {"realm": tokens.url, "service": "test", "issuer": "tokens", "rootcertbundle": bundle}
        auth = {"auth": {"token": service}}
    storage = {"filesystem": {"rootdirectory": str(place)}}
    settings = {"version": 0.1, "storage": storage, "http": {"addr": address}, "log": {"level": "warn"}, **auth}
    (folder / "registry.yml").write_text(yaml.safe_dump(settings))
    command = [bin_folder("registry") / "registry", "serve", folder / "registry.yml"]

    def replace(digest: str, content: bytes) -> None:
        name = digest.removeprefix("sha256:")
        (place / "docker/registry/v2/blobs/sha256" / name[:2] / name / "data").write_bytes(content)

    host, _, port = address.partition(":")
    with Daemon("registry", command, folder).running(lambda: socket_health((host, int(port))), limit=60):
        yield Registry(address, replace, tokens)
