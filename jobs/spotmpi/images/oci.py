"""A repository of an OCI registry: its blobs, manifests and tags, over HTTPS, by the OCI distribution API 1.1."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import ipaddress
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar

import httpx2

from spotmpi.agent.files import error_text
from spotmpi.aws.errors import CloudError
from spotmpi.aws.registry import registry_login
from spotmpi.core import names
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.core.reminders import LONG_QUIET, reminders
from spotmpi.core.wording import counted, print_message, printable
from spotmpi.images.build import ecr_region
from spotmpi.streams import storage

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
_DOCKER = "application/vnd.docker.distribution.manifest"
# A registry says of what the client does not accept that there is none.
_MANIFESTS = {"Accept": ", ".join((MANIFEST, INDEX, f"{_DOCKER}.v2+json", f"{_DOCKER}.list.v2+json"))}
_LABEL = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"  # of the name of a host
_WORD = "[a-z0-9]+(?:(?:[.]|_{1,2}|-+)[a-z0-9]+)*"  # of the name of a repository
_REFERENCE = re.compile(
    rf"(?P<host>({_LABEL}(\.{_LABEL})*|\[[0-9a-f:]+\])(:\d+)?)/(?P<name>{_WORD}(/{_WORD})*)"
    r"(:(?P<tag>\w[\w.-]{0,127}))?(@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_BLOCK = 1 << 20
_LARGEST = 16 << 20  # bytes of a manifest, or of another answer; registries take manifests of 4 MiB
_TIMEOUT = httpx2.Timeout(60, connect=10)  # seconds without any byte
_COMMIT = httpx2.Timeout(600, connect=10)  # the registry hashes the whole blob before it answers
_BUSY = (408, 425, 429)  # statuses, besides those from 500 on, after which a client shall ask again
WRITES = 5  # of a tag that others may write at the same time: no registry compares it with what they have read
_TAGS = 10  # that a message names
_MOST = 10_000  # entries of a list that comes in pages
_BLOB = "spotmpi.blob"  # marks requests whose answers may be large, in the requests of redirects as well
P = ParamSpec("P")
T = TypeVar("T")
_HUB, _HUB_API, _HUB_LOGIN = "docker.io", "registry-1.docker.io", "https://index.docker.io/v1/"


@dataclass(frozen=True)
class Image:
    """``HOST/NAME:TAG`` or ``HOST/NAME@sha256:...``, as people name what is in a registry."""

    host: str
    name: str
    tag: str | None
    digest: str | None

    @property
    def label(self) -> str:
        """The digest, else the tag, by which the registry finds its manifest."""
        return self.digest or self.tag or "latest"

    @property
    def url(self) -> str:
        """The address of the repository. Only a registry on this machine is used without TLS."""
        host = _HUB_API if self.host == _HUB else self.host
        return f"{'http' if _is_local(host) else 'https'}://{host}/v2/{self.name}"

    def __str__(self) -> str:
        return f"{self.host}/{self.name}{'@' if self.digest else ':'}{self.label}"


def read_image(text: str) -> Image:
    """What a reference names; InputError for one without a registry."""
    match = _REFERENCE.fullmatch(text)
    if match is None or not re.search(r"[.:]|^localhost$", match["host"]):
        remedy = "write REGISTRY/NAME:TAG in lower case, such as ghcr.io/team/digits:3, without https://"
        raise input_error("image", text, remedy)
    return Image(match["host"], match["name"], match["tag"], match["digest"])


class _Unavailable(SpotmpiError):
    """A registry that does not answer now, but may soon."""


def _retried(method: Callable[P, T]) -> Callable[P, T]:
    """Ask a registry again that is busy, or whose connection breaks: a model may have many large files."""

    @functools.wraps(method)
    def tried(*args: P.args, **options: P.kwargs) -> T:
        for pause in storage.PAUSES:
            with contextlib.suppress(_Unavailable):
                return method(*args, **options)
            time.sleep(pause)
        return method(*args, **options)

    return tried


def digest_of(content: bytes) -> str:
    """The digest of a blob or manifest, as registries write it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _encoded(manifest: Mapping[str, Any]) -> bytes:
    return json.dumps(manifest, separators=(",", ":")).encode()


def overwritten(image: Image) -> SpotmpiError:
    """The error for a signature that others' writes of the same tag have removed each time."""
    return SpotmpiError(f"others sign {image} at the same time, and have overwritten this signature: sign it again")


def _referrers_tag(digest: str) -> str:
    return digest.replace(":", "-")


class Repository:
    """The repository of *image*, with the credentials that docker has for its registry, or in ECR those of AWS.

    All methods raise SpotmpiError, with one line, where the registry cannot be reached or refuses.
    """

    def __init__(self, image: Image) -> None:
        self.image = image
        self._client = httpx2.Client(
            auth=_Login(image),
            timeout=_TIMEOUT,
            follow_redirects=True,
            headers={"Accept-Encoding": "identity"},
            event_hooks={"response": [self._limit]},
        )

    def __enter__(self) -> Repository:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()

    @_retried
    def has_blob(self, digest: str) -> bool:
        """Whether it has a blob."""
        response = self._request("HEAD", f"/blobs/{digest}", digest, (200, 404))
        return response.status_code == 200

    @_retried
    def push_blob(self, digest: str, size: int, content: Path | bytes) -> None:
        """Upload a blob of *size* bytes in one piece; the registry compares it with its digest."""
        started = self._request("POST", "/blobs/uploads/", digest, (202,))
        with self._errors():
            url = started.url.join(started.headers.get("location", "")).copy_merge_params({"digest": digest})
        headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
        body = content if isinstance(content, bytes) else _Blocks(content)
        self._request("PUT", str(url), digest, (201,), content=body, headers=headers, timeout=_COMMIT)

    @_retried
    def pull_blob(self, digest: str, size: int, target: Path) -> None:
        """Download a blob to a file.

        Raises:
            OSError: it cannot be written.
            SpotmpiError: it is damaged.
        """
        with target.open("wb") as file:
            self._receive(digest, size, file.write)

    @_retried
    def read_blob(self, digest: str, size: int) -> bytes:
        """The content of a small blob; SpotmpiError where it is damaged."""
        content = bytearray()
        self._receive(digest, size, content.extend)
        return bytes(content)

    def _receive(self, digest: str, size: int, write: Callable[[bytes], object]) -> None:
        """Let *write* have the content of a blob, block by block; SpotmpiError at the end where it was damaged."""
        whole, length = hashlib.sha256(), 0
        url, marks = f"{self.image.url}/blobs/{digest}", {_BLOB: True}
        with self._errors(), self._client.stream("GET", url, extensions=marks) as response:
            if response.status_code != 200:
                response.read()
                self._refuse(response, digest)
            for block in response.iter_raw(_BLOCK):
                whole.update(block)
                length += len(block)
                write(block)
                if length > size:
                    break
        if (length, f"sha256:{whole.hexdigest()}") != (size, digest):
            remedy = "pull again, and push it again if that does not help"
            came = f"{counted(length, 'byte')} with the digest sha256:{whole.hexdigest()[:12]}"
            raise SpotmpiError(f"{self.image} is damaged: {came} came for {size:,} of {digest[:19]}: {remedy}")

    def push_manifest(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Let the tag of the image name a manifest; its descriptor."""
        content = _encoded(manifest)
        self._put(self.image.label, content, str(manifest["mediaType"]))
        return {"mediaType": manifest["mediaType"], "digest": digest_of(content), "size": len(content)}

    def push_referrer(self, manifest: Mapping[str, Any]) -> None:
        """Push a manifest with a `subject`; where the registry does not list these itself, a tag has their list."""
        content, subject = _encoded(manifest), str(manifest["subject"]["digest"])
        response = self._put(digest_of(content), content, str(manifest["mediaType"]))
        if "oci-subject" in response.headers:
            return
        described = {"mediaType": manifest["mediaType"], "digest": digest_of(content), "size": len(content)}
        described["artifactType"] = manifest["artifactType"]
        known = self.referrers(subject)
        for _ in range(WRITES):
            others = [each for each in known if each.get("digest") != described["digest"]]
            index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [*others, described]}
            self._put(_referrers_tag(subject), _encoded(index), INDEX)
            known = self.referrers(subject)
            if any(each.get("digest") == described["digest"] for each in known):
                return
        raise overwritten(self.image)

    @_retried
    def _put(self, label: str, content: bytes, kind: str) -> httpx2.Response:
        headers = {"Content-Type": kind}
        return self._request("PUT", f"/manifests/{label}", label, (201,), content=content, headers=headers)

    def pull_manifest(self) -> tuple[dict[str, Any], str]:
        """The manifest that the image names, and its digest.

        Raises:
            SpotmpiError: there is none, or it is not of the digest that was asked for.
        """
        found = self.find_manifest()
        if found is None:
            tags = map(str, self._list("/tags/list", "tags", (200, 404)) or ())
            known = [tag for tag in tags if not tag.startswith("sha256-")]  # which are those of signatures
            remedy = f"it has: {', '.join(known[-_TAGS:])}" if known else "`spotmpi models push` creates one"
            raise SpotmpiError(f"{self.image.host} has no {self.image.name} with {self.image.label}: {remedy}")
        return found

    @_retried
    def find_manifest(self) -> tuple[dict[str, Any], str] | None:
        """As `pull_manifest`, but None where there is none."""
        label = self.image.label
        response = self._request("GET", f"/manifests/{label}", label, (200, 404), headers=_MANIFESTS)
        if response.status_code == 404:
            return None
        digest = digest_of(response.content)
        if self.image.digest and digest != self.image.digest:
            remedy = "do not use it, and ask whoever runs the registry"
            raise SpotmpiError(f"{self.image} is not what its digest says, the registry sent {digest}: {remedy}")
        if manifest := _object(response):
            return manifest, digest
        raise SpotmpiError(f"the manifest of {self.image} is not a JSON object: name a model, as it was pushed")

    @_retried
    def referrers(self, digest: str) -> list[dict[str, Any]]:
        """The descriptors of manifests that refer to one; of a registry without an API for them those of its tag."""
        for path in (f"/referrers/{digest}", f"/manifests/{_referrers_tag(digest)}"):
            found = self._list(path, "manifests", (200, 400, 404, 406), headers={"Accept": INDEX})
            if found is not None:
                return [each for each in found if isinstance(each, dict)]
        return []

    def _list(self, path: str, key: str, accept: tuple[int, ...], **options: Any) -> list[Any] | None:
        """What the answer and its further pages have under *key*; None where the registry has no such list."""
        found: list[Any] = []
        while len(found) < _MOST:
            response = self._request("GET", path, key, accept, **options)
            if response.status_code != 200:
                break
            page = _object(response).get(key) or []
            if not isinstance(page, list):
                break
            found += page
            following = response.links.get("next", {}).get("url")
            if not following or not page:
                return found
            with self._errors():
                path = str(response.url.join(following))
        return found or None

    def _request(self, method: str, path: str, what: str, accept: tuple[int, ...], **options: Any) -> httpx2.Response:
        url = path if "://" in path else self.image.url + path
        with self._errors():
            if httpx2.URL(url).netloc != httpx2.URL(self.image.url).netloc:
                options["auth"] = None  # a storage behind the registry, which gets no login
            with self._reminders(options.get("timeout", _TIMEOUT).read):
                response = self._client.request(method, url, **options)
        if response.status_code not in accept:
            self._refuse(response, what)
        return response

    def _reminders(self, limit: float) -> contextlib.AbstractContextManager[None]:
        """Says, while in the context, that the registry is waited for, which may be silent for so many seconds."""
        text = f"waiting for the registry {self.image.host}, for {{:.0f}} s (gives up after {limit:g} s of silence)"
        return reminders(text.format, print_message, LONG_QUIET)

    def _limit(self, response: httpx2.Response) -> None:
        """Let no answer fill the memory: what is not a blob is small, also of logins and redirects."""
        if response.status_code == 200 and response.request.extensions.get(_BLOB):
            return
        response.headers.pop("Content-Encoding", None)  # which was not asked for
        what = response.request.url.path.rpartition("/")[2]
        sent = f"{self.image.host} sends more than {_LARGEST >> 20} MiB for {what} of {self.image.name}"
        remedy = "no manifest is that long: ask whoever runs the registry"
        response.stream = _Limited(response.stream, SpotmpiError(f"{sent}: {remedy}"))

    def _refuse(self, response: httpx2.Response, what: str) -> NoReturn:
        host, status = self.image.host, response.status_code
        if status in (401, 403):
            login = f"log in with `docker login {host}`, as somebody who may use {self.image.name}"
            raise SpotmpiError(f"{host} refuses access to {self.image.name} ({status}): {login}")
        text = f"{host} has answered {status} for {self.image.name} ({what[:19]}): {_reason(response)}"
        if status in _BUSY or status >= 500:
            raise _Unavailable(f"{text}; try again later")
        remedy = "check that this is a registry, what it permits, and that this tag may be written again"
        if response.request.method in ("GET", "HEAD"):
            remedy = "push the model again" if status == 404 else "check that this is a registry"
        elif status == 404:
            remedy = "create the repository, if the registry needs that"
        raise SpotmpiError(f"{text}; {remedy}")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Failures of the network as one line."""
        host = self.image.host
        try:
            yield
        except httpx2.ConnectError as error:
            remedy = "check its name, its port and your network"
            if "SSL" in str(error):
                remedy = "it has to speak TLS with a certificate that this machine trusts, unless it is on this machine"
            raise SpotmpiError(f"the registry {host} cannot be reached: {error_text(error)}; {remedy}") from error
        except (httpx2.NetworkError, httpx2.RemoteProtocolError) as error:
            reason = error_text(error) or type(error).__name__
            raise _Unavailable(f"the connection to the registry {host} broke: {reason}; try again") from error
        except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:  # the last one of a name of a host
            reason = str(error) or type(error).__name__
            raise SpotmpiError(f"the registry {host} does not answer as one: {reason}; try again") from error


class _Limited(httpx2.SyncByteStream):
    """The bytes of an answer, up to `_LARGEST`; then *error*."""

    def __init__(self, stream: Any, error: SpotmpiError) -> None:
        self._stream, self._error = stream, error

    def __iter__(self) -> Iterator[bytes]:
        length = 0
        for block in self._stream:
            length += len(block)
            if length > _LARGEST:
                raise self._error
            yield block

    def close(self) -> None:
        """Release the connection."""
        self._stream.close()


class _Blocks:
    """The content of a file, which may be sent again."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __iter__(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            while block := file.read(_BLOCK):
                yield block


class _Login(httpx2.Auth):
    """Answers the challenge of a registry, a Basic or a Bearer one, with what docker knows; asks once per scope."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self._header: str | None = None

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        """Send the request, and again with credentials where the registry asks for them."""
        if self._header:
            request.headers["Authorization"] = self._header
        response = yield request
        scheme, _, rest = response.headers.get("www-authenticate", "").partition(" ")
        if response.status_code != 401 or not scheme:
            return
        basic = _basic(self._image)
        self._header = basic
        if scheme.lower() == "bearer":
            values = dict(_CHALLENGE.findall(rest))
            realm = httpx2.URL(values.get("realm", ""))
            if realm.scheme != "https" and not _is_local(realm.host):
                return
            query = {key: values[key] for key in ("service", "scope") if key in values}
            headers = {"Authorization": basic} if basic else {}
            answer = yield httpx2.Request("GET", realm.copy_merge_params(query), headers=headers)
            self._header = _bearer(answer)
        if self._header:
            request.headers["Authorization"] = self._header
            yield request


def _bearer(answer: httpx2.Response) -> str | None:
    answer.read()
    values = _object(answer)
    token = values.get("token") or values.get("access_token")
    return f"Bearer {token}" if answer.status_code == 200 and token else None


def _basic(image: Image) -> str | None:
    """The credentials for a registry as a header: those of docker's configuration, or in ECR those of AWS."""
    folder = os.environ.get("DOCKER_CONFIG") or names.absolute("~/.docker")
    host = _HUB_LOGIN if image.host == _HUB else image.host
    try:
        config = _table(json.loads(Path(folder, "config.json").read_bytes()), "it")
        helper = _table(config.get("credHelpers"), "`credHelpers`").get(host) or config.get("credsStore")
        login = _table(_table(config.get("auths"), "`auths`").get(host), f"`auths` of {host}").get("auth")
        if login and b":" not in base64.b64decode(login, validate=True):
            raise ValueError(f"`auth` of {host} is not the Base64 of user:password")
    except FileNotFoundError:
        helper = login = None
    except (OSError, ValueError, TypeError, RecursionError) as error:
        remedy = f"correct it, or remove it and `docker login {image.host}`"
        raise SpotmpiError(f"{folder}/config.json cannot be read: {error_text(error)}; {remedy}") from error
    if login:
        return f"Basic {login}"
    if helper and (found := _from_helper(str(helper), host)):
        return found
    region = ecr_region(image.host)
    if region is None:
        return None
    try:
        of_region = registry_login(region)
    except CloudError as error:
        raise SpotmpiError(f"AWS gives no login for {image.host}: {error}") from error
    return _header(of_region.user, of_region.password)


def _table(value: Any, what: str) -> dict[str, Any]:
    """A value of docker's configuration that is a table or null; ValueError for another one, as docker and oras."""
    if not isinstance(value, dict | None):
        raise ValueError(f"{what} is not a JSON object")
    return value or {}


def _from_helper(helper: str, host: str) -> str | None:
    """What a credential helper of docker knows of a registry."""
    with contextlib.suppress(OSError, ValueError, KeyError, subprocess.SubprocessError):
        done = subprocess.run(
            [f"docker-credential-{helper}", "get"],
            input=host,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=True,
            timeout=60,
        )
        values = json.loads(done.stdout)
        return _header(values["Username"], values["Secret"])
    return None


def _header(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _reason(response: httpx2.Response) -> str:
    with contextlib.suppress(LookupError, TypeError):
        return printable(_object(response)["errors"][0]["message"])
    return printable(response.reason_phrase) or "no reason given"


def _object(response: httpx2.Response) -> dict[str, Any]:
    """The JSON object in an answer; an empty one where it has none."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(response.content)
        if isinstance(found, dict):
            return found
    return {}


def _is_local(host: str) -> bool:
    name = httpx2.URL(f"http://{host}").host
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(name).is_loopback
    return name == "localhost"
