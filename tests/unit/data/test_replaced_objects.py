"""An object that is replaced while it is fetched arrives as one version; the site of these tests behaves as S3."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Collection
from concurrent.futures import wait
from typing import Any

import pytest
import requests
from moto import mock_aws

from spotmpi.agent import fetch, web_file
from tests.cloud.account.fake_account import FakeAccount
from tests.unit.data.conftest import WEIGHTS, Volume, sha
from tests.unit.data.web_site import Site

NEW = b"v" * 50_000


@pytest.mark.parametrize("conditions", [True, False])
@pytest.mark.parametrize("new", [NEW, NEW[:15_000], NEW + b"more"], ids=["same size", "shorter", "longer"])
def test_an_object_that_is_replaced_while_it_is_fetched_arrives_as_one_version(
    volume: Volume, site: Site, new: bytes, conditions: bool
) -> None:
    site.conditions = conditions
    site.replacements = {3: {"weights.npz": new}}  # after the first look and two pieces
    assert volume.fetch_weights(site) == (0, {"done": [[1, len(new), 1]]})
    assert volume.tree() == {"weights.npz": new}


def test_the_next_version_is_begun_once_no_piece_of_the_old_one_is_under_way(
    volume: Volume, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    is_answered, is_awaited = threading.Event(), threading.Event()
    read, probe = web_file.read, web_file.probe

    def slow(url: str, start: int, end: int, tag: str | None) -> bytes:
        if start:
            is_answered.wait()
            return read(url, start, end, tag)
        data = read(url, start, end, tag)
        is_answered.set()
        is_awaited.wait()  # its answer is long on the way
        order.append(f"a piece of {data[:1]!r} came")
        return data

    def looked(url: str) -> tuple[int, str]:
        order.append("look")
        if len(order) > 1:
            is_awaited.set()
        return probe(url)

    def waiting(pieces: Collection[Any]) -> Any:
        is_awaited.set()
        return wait(pieces)

    monkeypatch.setattr(web_file, "read", slow)
    monkeypatch.setattr(web_file, "probe", looked)
    monkeypatch.setattr(fetch, "wait", waiting)
    site.replacements = {2: {"weights.npz": NEW}}

    assert volume.fetch_weights(site)[0] == 0

    assert order == ["look", "a piece of b'w' came", "look", "a piece of b'v' came"]
    assert volume.tree() == {"weights.npz": NEW}


def test_an_object_that_is_replaced_again_and_again_is_worth_another_try_of_the_job(volume: Volume, site: Site) -> None:
    site.replacements = {number: {"weights.npz": bytes([number]) * 50_000} for number in range(99)}
    message = "weights.npz: it was replaced 3 times while it was fetched; push again once it no longer changes"
    assert volume.fetch_weights(site) == (1, {"failed": message})
    assert volume.tree() == {}


def test_without_checksum_and_etag_nothing_is_fetched(volume: Volume, site: Site) -> None:
    site.tags = False
    code, result = volume.fetch_weights(site)
    assert code == 78 and "sends no strong ETag, so a change would go unnoticed: append #sha256=" in result["failed"]
    assert volume.fetch_weights(site, sha(WEIGHTS))[0] == 0


@pytest.mark.parametrize(
    "headers",
    [
        {"Range": "bytes=0-0"},
        {"Range": "bytes=8-20"},
        {"Range": "bytes=2-4", "If-Match": f'"{hashlib.md5(b"0123456789").hexdigest()}"'},
        {"Range": "bytes=2-4", "If-Match": '"another"'},
        {"Range": "bytes=10-12"},
        {"Range": "bytes=10-12", "If-Match": '"another"'},
    ],
)
def test_the_site_answers_as_s3_does(site: Site, headers: dict[str, str]) -> None:
    site.files["key"] = b"0123456789"

    def answer(url: str) -> tuple[int, dict[str, str | None], bytes]:
        response = requests.get(url, headers=headers, timeout=10)
        whole = response.status_code < 400
        facts = {name: response.headers.get(name) for name in ("ETag", "Content-Range", "Content-Length") if whole}
        return response.status_code, facts, response.content if whole else b""

    ours = answer(f"{site.address}/key")
    with mock_aws():
        client = FakeAccount(services=()).client("s3", "us-east-1")
        client.create_bucket(Bucket="sets")
        client.put_object(Bucket="sets", Key="key", Body=site.files["key"])
        s3s = answer(client.generate_presigned_url("get_object", {"Bucket": "sets", "Key": "key"}))
    assert ours == s3s
