"""Models in registries of images: pushed in the layout of ModelPack, and pulled into the store.

Each file of a version is a layer, as it is, under the SHA-256 that its manifest has already. A further layer is that
manifest, so that a version comes with all that it was made from.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from spotmpi.api.entries import Entry
from spotmpi.core import wording
from spotmpi.core.errors import SpotmpiError, input_error
from spotmpi.core.wording import Echo
from spotmpi.entries import manifest as form
from spotmpi.entries.manifest import FILES, MODEL, File, Manifest, check_name
from spotmpi.entries.storage import seal
from spotmpi.entries.store import Store, folder
from spotmpi.images import oci, signatures
from spotmpi.images.oci import Image, Repository, read_image

# https://github.com/modelpack/model-spec 0.0.7
_ARTIFACT = "application/vnd.cncf.model.manifest.v1+json"
_CONFIG = "application/vnd.cncf.model.config.v1+json"
_WEIGHTS = "application/vnd.cncf.model.weight.v1.raw"  # a file as it is: neither tar nor compressed
_ENTRY = "application/vnd.cncf.model.doc.v1.raw"  # the manifest of the store
_PATH = "org.cncf.model.filepath"
_TITLE = "org.opencontainers.image.title"  # where `oras pull` writes it
ENTRY_FILE = "spotmpi-model.json"
_LARGEST = 64 << 20  # bytes of a manifest of the store


def push(model: Entry, image: str, sign_key: str | Path | None, echo: Echo) -> str:
    """Push *model* to a registry, signed by the key if there is one; its reference there by digest."""
    key = signatures.private_key(Path(sign_key)) if sign_key else None
    target = read_image(image)
    if target.digest:
        raise input_error("image", image, "has a digest, which is that of what it names: give REGISTRY/NAME:TAG")
    if any(file.path == ENTRY_FILE for file in model.manifest.files):
        remedy = f"has a file {ENTRY_FILE}, as a push writes one: keep its other files, without that one"
        raise input_error("model", str(model), remedy)
    entry = form.write(model.manifest).encode()
    config = _config(model.manifest)
    total = wording.counted(len(model.manifest.files), "file")
    with Repository(target) as repository:
        for number, file in enumerate(model.manifest.files, 1):
            digest = f"sha256:{file.sha256}"
            if not repository.has_blob(digest):
                echo(f"pushing {file.path}, {number} of {total}, {wording.format_size(file.bytes)}")
                with _intact(model, file) as path:
                    repository.push_blob(digest, file.bytes, path)
        for content in (entry, config):
            if not repository.has_blob(oci.digest_of(content)):
                repository.push_blob(oci.digest_of(content), len(content), content)
        pushed = repository.push_manifest(_image_manifest(model.manifest, config, entry))
        if key:
            signatures.sign(repository, pushed, key)
    return f"{target.host}/{target.name}@{pushed['digest']}"


@contextmanager
def _intact(model: Entry, file: File) -> Iterator[Path]:
    """A file of a model on this machine, as its manifest has it."""
    name = f"{folder(model.manifest.reference)}/{FILES}/{file.path}"
    with tempfile.TemporaryDirectory() as temporary:
        own = model.store.storage.folder
        path = own / name if own else Path(temporary, "file")
        if own is None:
            model.store.storage.copy(name, path)
        try:
            found = form.describe(path, file.path)
        except FileNotFoundError:
            found = None
        if found != file:
            remedy = f"`spotmpi models verify {model}` shows all that is"
            raise SpotmpiError(f"{model} is damaged, {file.path}: {remedy}")
        yield path


def pull(image: str, store: Store, key: str | Path | None, echo: Echo, keep: str | None) -> Manifest:
    """Keep a model of a registry in *store*, if the key has signed it and under the name *keep* if there are these."""
    public = signatures.public_key(Path(key)) if key else None
    source = read_image(image)
    with Repository(source) as repository:
        manifest, digest = repository.pull_manifest()
        if public and key:
            signatures.require_signed(repository, digest, public, Path(key))
        entry = _entry(repository, manifest, source)
        entry = msgspec.structs.replace(entry, name=check_name(keep)) if keep else entry
        existing = store.get(entry.reference)
        if existing is not None:
            _require_same_files(existing, entry, source)
            echo(f"{existing.title} is that model already")
            return existing
        versions = store.versions(MODEL, entry.name)
        if others := [each for each in versions.numbers() if versions.key(str(each)) != entry.key]:
            remedy = f"{wording.option('keep', 'NAME')} keeps it under another name"
            echo(f"pulling another model than {entry.name}:{others[-1]}, as the next version of that name: {remedy}")
        places: dict[str, Path] = {}  # by digest
        total = wording.counted(len(entry.files), "file")
        with store.room_for(entry) as new:
            for number, file in enumerate(entry.files, 1):
                if file.sha256 not in places:
                    echo(f"pulling {file.path}, {number} of {total}, {wording.format_size(file.bytes)}")
                    place = places[file.sha256] = new / str(number)  # names are whatever the registry says
                    repository.pull_blob(f"sha256:{file.sha256}", file.bytes, place)
                    seal(place)
            own = store.storage.folder
            names = {digest: str(place.relative_to(own) if own else place) for digest, place in places.items()}
            return store.add(entry, {file.path: names[file.sha256] for file in entry.files})


def _require_same_files(existing: Manifest, entry: Manifest, source: Image) -> None:
    """Raise SpotmpiError where an image has other files than the version of its key, which is then not theirs."""
    if sorted(existing.files, key=_path) != sorted(entry.files, key=_path):
        remedy = f"{wording.option('keep', 'NAME')} keeps it under another name"
        raise SpotmpiError(f"{source} has other files than {existing.title}, which has the same key: {remedy}")


def _path(file: File) -> str:
    return file.path


def _entry(repository: Repository, manifest: Mapping[str, Any], source: Image) -> Manifest:
    """The manifest of the store that an image has as a layer."""
    try:
        layer = next(each for each in manifest["layers"] if each["annotations"].get(_PATH) == ENTRY_FILE)
        digest, size = str(layer["digest"]), int(layer["size"])
    except (StopIteration, LookupError, TypeError, ValueError, AttributeError):
        size = _LARGEST + 1
    if size <= _LARGEST:
        push = "push it again from a store that has it (`spotmpi models push`)"
        found = form.read(repository.read_blob(digest, size).decode(errors="replace"), f"of {source}", push)
        if found.kind == MODEL:
            return found
    remedy = "pull it with oras or modctl, and keep its files with a run of yours"
    raise SpotmpiError(f"{source} is not a model that `spotmpi models push` has written: {remedy}")


def _image_manifest(manifest: Manifest, config: bytes, entry: bytes) -> dict[str, Any]:
    files = [_layer(_WEIGHTS, file.path, f"sha256:{file.sha256}", file.bytes) for file in manifest.files]
    return {
        "schemaVersion": 2,
        "mediaType": oci.MANIFEST,
        "artifactType": _ARTIFACT,
        "config": {"mediaType": _CONFIG, "digest": oci.digest_of(config), "size": len(config)},
        "layers": [*files, _layer(_ENTRY, ENTRY_FILE, oci.digest_of(entry), len(entry))],
        "annotations": {"org.opencontainers.image.created": _created(manifest), _TITLE: manifest.title},
    }


def _layer(kind: str, path: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": kind, "digest": digest, "size": size, "annotations": {_PATH: path, _TITLE: path}}


def _config(manifest: Manifest) -> bytes:
    """The configuration of ModelPack; the same model has the same bytes."""
    descriptor = {"name": manifest.name, "version": str(manifest.version), "createdAt": _created(manifest)}
    if manifest.code and manifest.code.commit:
        descriptor["revision"] = manifest.code.commit
    layers = [f"sha256:{file.sha256}" for file in manifest.files]
    entry = oci.digest_of(form.write(manifest).encode())
    values = {"descriptor": descriptor, "config": {}, "modelfs": {"type": "layers", "diffIds": [*layers, entry]}}
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


def _created(manifest: Manifest) -> str:
    return datetime.fromtimestamp(manifest.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
