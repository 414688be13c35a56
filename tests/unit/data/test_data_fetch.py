"""What a Job of the cluster does to fetch data: pieces, checks, faults, and objects that are replaced meanwhile."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import boto3
import pytest
import requests
from moto import mock_aws

from spotmpi.agent import fetch, store, web_file
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.data.remote_source import Download, authority_of, downloads_of
from tests.cloud.account.answers import KEY_ID, SECRET, TOKEN, Refusal
from tests.cloud.account.fake_account import FakeAccount
from tests.testbed.certificates import Authority
from tests.transient_errors import TransientErrors
from tests.unit.archives import tar_of
from tests.unit.data.conftest import PIECE, WEIGHTS, Volume, sha
from tests.unit.data.web_site import Site, serving


def test_a_tar_comes_in_pieces_is_checked_and_unpacked(
    volume: Volume, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    size = len(site.files["set.tar"])
    download = site.download("set.tar", str(volume.folder), sha(site.files["set.tar"]))

    assert volume.fetch([download]) == (0, {"done": [[1, 100_000, 1]]})
    assert volume.tree() == {"VOCdevkit/big": bytes(100_000)}
    assert len(site.ranges) == 1 + -(-size // PIECE)
    message = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert message[0] == {"name": "set.tar", "got": 0, "of": size, "whole": 0, "all": 1}, "before anything has arrived"
    assert message[-2:] == [
        {"name": "set.tar", "got": size, "of": size, "whole": 1, "all": 1},
        {"done": [[1, 100_000, 1]]},
    ]


def test_several_sources_are_distinguished_and_a_second_fetch_downloads_nothing(volume: Volume, site: Site) -> None:
    folder = str(volume.folder)
    site.files |= {f"part-{number}": b"p" * number for number in range(6)}
    parts = [site.download(f"part-{number}", folder) for number in range(6)]

    code, result = volume.fetch([site.download("set.tar", folder)], parts)
    assert (code, result) == (0, {"done": [[1, 100_000, 1], [6, 15, 6]]})
    assert volume.tree() == {"VOCdevkit/big": bytes(100_000)} | {f"part-{n}": b"p" * n for n in range(6)}

    (volume.folder / "part-3").unlink()
    before = len(site.ranges)
    code, result = volume.fetch([site.download("set.tar", folder)], parts)
    assert (code, result) == (0, {"done": [[1, 100_000, 0], [6, 15, 1]]})
    assert len(site.ranges) - before == 7 + 1  # each is looked at, one is read


def test_two_tars_share_a_file_of_equal_content_and_no_other(volume: Volume, site: Site) -> None:
    folder = str(volume.folder)
    site.files |= {f"{name}.tar": tar_of({"LICENSE": b"free", f"{name}.txt": b""}) for name in ("cats", "dogs")}
    assert volume.fetch([site.download("cats.tar", folder)], [site.download("dogs.tar", folder)])[0] == 0
    assert sorted(volume.tree()) == ["LICENSE", "cats.txt", "dogs.txt"]

    site.files["dogs.tar"] = tar_of({"LICENSE": b"paid"})  # also where the other one was fetched before
    for content in (b"free", b"new"):
        code, result = volume.fetch([site.download("cats.tar", folder)], [site.download("dogs.tar", folder)])
        assert code == fetch.NOT_RETRYABLE
        remedy = "'LICENSE' is in another of the sources too, with other content: push them to different folders"
        assert result["failed"].partition(": ")[2] == remedy
        site.files["cats.tar"] = tar_of({"LICENSE": content})
    assert not list(volume.folder.rglob("LICENSE.*"))
    for name in ("cats", "dogs"):  # both change, to the same
        site.files[f"{name}.tar"] = tar_of({"LICENSE": b"of 2026", f"{name}.txt": b""})
    assert volume.fetch([site.download("cats.tar", folder)], [site.download("dogs.tar", folder)])[0] == 0
    site.files["dogs.tar"] = tar_of({"LICENSE": b"paid"})
    assert volume.fetch([site.download("dogs.tar", folder)])[0] == 0
    assert volume.tree()["LICENSE"] == b"paid"  # alone it may replace what an earlier push brought


def test_parts_that_fail_for_a_moment_are_requested_again(volume: Volume, site: Site) -> None:
    site.faults = {0: 503, 3: 503, 4: 0, 6: 500}
    code, _ = volume.fetch_weights(site, sha(WEIGHTS))
    assert (code, volume.tree()) == (0, {"weights.npz": WEIGHTS}) and len(site.ranges) == 1 + 5 + 4


def test_a_server_that_stays_away_is_worth_another_try_of_the_job(volume: Volume, site: Site) -> None:
    site.faults = dict.fromkeys(range(99), 503)
    code, result = volume.fetch_weights(site)
    assert code == 1 and result["failed"].startswith("weights.npz: no answer after 6 tries: HTTP Error 503")


def test_an_interrupted_download_continues_from_another_address_of_the_same_file(volume: Volume, site: Site) -> None:
    site.faults = dict.fromkeys(range(4, 99), 404)
    code, result = volume.fetch_weights(site)
    denied = "weights.npz: HTTP 404: the file does not exist, or access to it is denied"
    assert (code, result) == (78, {"failed": denied})
    assert volume.tree() == {}
    site.faults, before = {}, len(site.ranges)

    assert volume.fetch_weights(site)[0] == 0

    assert len(site.ranges) - before < 1 + 5
    assert volume.tree() == {"weights.npz": WEIGHTS}


def test_an_evicted_pod_ends_at_once_and_the_next_continues(volume: Volume, site: Site) -> None:
    folder, names = str(volume.folder), [f"part-{number}" for number in range(9)]
    site.files = {name: name.encode() for name in names}
    site.free = 10  # each file takes two questions
    site.open.clear()
    downloads = volume.write([site.download(name, folder) for name in names])
    pod = subprocess.Popen([sys.executable, "-m", "spotmpi.agent.fetch", str(downloads), str(volume.authority)])
    while len(site.ranges) < site.free + fetch.FILES_AT_ONCE:
        assert pod.poll() is None
        time.sleep(0.01)

    pod.send_signal(signal.SIGTERM)

    assert pod.wait(60) == fetch.INTERRUPTED  # though the site still holds its answers back
    site.open.set()
    code, result = volume.fetch([site.download(name, folder) for name in names])
    assert (code, volume.tree()) == (0, site.files)
    assert result["done"][0][2] < len(names)


@pytest.mark.parametrize("whole", [False, True])
def test_a_file_that_has_changed_since_is_fetched_anew(volume: Volume, site: Site, whole: bool) -> None:
    site.faults = {} if whole else dict.fromkeys(range(4, 99), 403)
    assert volume.fetch_weights(site)[0] == (0 if whole else 78)
    site.faults, site.files["weights.npz"] = {}, b"v" * 50_000
    assert volume.fetch_weights(site) == (0, {"done": [[1, 50_000, 1]]})
    assert volume.tree() == {"weights.npz": b"v" * 50_000}


def test_a_wrong_checksum_or_a_server_without_ranges_is_an_error_that_leaves_no_file(
    volume: Volume, site: Site
) -> None:
    code, result = volume.fetch([site.download("set.tar", str(volume.folder), "0" * 64)])
    assert code == 78 and "set.tar: the SHA-256 of the file is not the given one" in result["failed"]
    site.pieces = False
    code, result = volume.fetch([site.download("set.tar", str(volume.folder))])
    assert code == 78 and "the server does not support range requests (status 200)" in result["failed"]
    assert volume.tree() == {} and [each.name for each in volume.folder.iterdir()] == []


@pytest.mark.usefixtures("strict_certificates")
def test_a_site_of_an_own_authority_is_trusted_only_where_that_is_named(
    volume: Volume, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("urllib.request._opener", None)
    authority = Authority(tmp_path / "keys")
    with serving(credential=authority.issue("site", hosts=["127.0.0.1"])) as site:
        site.files = {"weights.npz": WEIGHTS}
        download = site.download("weights.npz", str(volume.folder), sha(WEIGHTS))

        code, result = volume.fetch([download])
        assert (code, site.ranges) == (78, [])
        assert "certificate not trusted (unable to get local issuer certificate); use --ca FILE" in result["failed"]
        volume.authority.write_text(authority_of(authority.certificate))
        assert volume.fetch([download]) == (0, {"done": [[1, 50_000, 1]]})
    for text in ("", "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"):
        (tmp_path / "bad.pem").write_text(text)
        with pytest.raises(InputError, match=r"--ca = .*bad.pem.*not a file of PEM certificates"):
            authority_of(tmp_path / "bad.pem")
    with pytest.raises(InputError, match=r"not a file of PEM certificates: No such file or directory"):
        authority_of(tmp_path / "none.pem")


def test_a_full_volume_is_a_permanent_failure(volume: Volume, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    code, result = volume.fetch_weights(site)
    reason = "weights.npz: No space left on device; free space on the volume, then try again"
    assert code == 78 and result["failed"] == reason


def test_notes_that_were_torn_cost_only_time(volume: Volume, site: Site) -> None:
    volume.fetch_weights(site)
    (volume.folder / f".fetched{store.PART}").write_text('{"mark": "12", "vers\n[]\n')
    assert volume.fetch_weights(site) == (0, {"done": [[1, 50_000, 1]]})


def test_an_address_needs_https_and_a_checksum() -> None:
    good = "0" * 64
    assert downloads_of(f"https://x.org/a/set.tar.gz#sha256={good}") == [
        Download("https://x.org/a/set.tar.gz", "set.tar.gz", good)
    ]
    assert downloads_of(f"https://x.org/a.tgz#sha256={good}")[0].values("/v")["unpack"] is True
    for text, message in (
        ("https://x.org/a.tar", "needs its SHA-256"),
        ("https://x.org/a.tar#sha256=12", "has a malformed SHA-256"),
        (f"http://x.org/a.tar#sha256={good}", "is not encrypted"),
        (f"https://x.org/#sha256={good}", "names no file"),
    ):
        with pytest.raises(InputError, match=message):
            downloads_of(text)


def test_objects_of_s3_are_fetched_by_signed_addresses_with_their_folders() -> None:
    with mock_aws():
        account, _ = s3_with(dict.fromkeys(("voc/2007.tar", "voc/more/2012.tar", "voc/", "vocal"), b"x"))

        (one,) = downloads_of("s3://sets/voc/2007.tar", account)
        assert (one.name, one.sha256) == ("2007.tar", None) and "X-Amz-Signature" in one.url
        assert [each.name for each in downloads_of("s3://sets/voc/", account)] == ["2007.tar", "more/2012.tar"]
        for text, message in (
            ("s3://sets/vo", "no such object"),
            (f"s3://sets/voc/#sha256={'0' * 64}", "a SHA-256 is for one object"),
        ):
            with pytest.raises(InputError, match=message):
                downloads_of(text, account)
        with pytest.raises(SpotmpiError, match="NoSuchBucket"):
            downloads_of("s3://nobodys/x", account)


@pytest.mark.parametrize("bucket_region", ["us-east-1", "eu-west-1", "eu-south-2"])
@pytest.mark.parametrize("bucket", ["sets", "my.sets"])
@pytest.mark.parametrize("own_region", ["us-east-1", "us-east-2"])
@pytest.mark.parametrize("folders_only", [False, True], ids=["whole bucket", "one folder"])
def test_a_signed_address_is_one_that_the_region_of_the_bucket_accepts(
    own_region: str, bucket: str, bucket_region: str, folders_only: bool
) -> None:
    """Whatever the account's default region is, also of objects that KMS encrypts, and where HeadBucket is refused."""
    account = FakeAccount(own_region)
    account.s3.folders_only = {bucket} if folders_only else set()
    account.s3.buckets[bucket] = {"region": bucket_region}
    account.s3.objects[bucket] = {"voc/ein Bild.tar": b"x"}
    (download,) = downloads_of(f"s3://{bucket}/voc/", account)
    assert account.s3.fetch(download.url) == b"x"
    assert download.name == "ein Bild.tar"


@pytest.mark.parametrize("code", ["503", "SlowDown"])
def test_a_bucket_whose_region_s3_is_too_busy_to_tell_is_not_taken_for_one_of_the_own_region(code: str) -> None:
    account = FakeAccount("us-east-1")
    account.s3.buckets["sets"] = {"region": "eu-west-1"}
    account.s3.objects["sets"] = {"a": b"x"}
    account.refuse("HeadBucket", code)
    with pytest.raises(SpotmpiError, match="s3:HeadBucket in us-east-1"):
        downloads_of("s3://sets/a", account)


def test_s3_refuses_what_is_signed_for_another_region_by_version_2_or_by_another_key() -> None:
    """The double is as strict as S3."""
    account = FakeAccount("us-east-1")
    account.s3.buckets["sets"] = {"region": "eu-west-1"}
    account.s3.objects["sets"] = {"a": b"x"}
    (download,) = downloads_of("s3://sets/a", account)
    elsewhere = account.client("s3", "us-east-1").generate_presigned_url("get_object", {"Bucket": "sets", "Key": "a"})
    session = boto3.Session(KEY_ID, SECRET, TOKEN, region_name="eu-west-1")
    by_default = session.client("s3").generate_presigned_url("get_object", {"Bucket": "sets", "Key": "a"})
    for url, code in (
        (elsewhere, "PermanentRedirect"),
        (by_default, "InvalidRequest"),
        (download.url.replace("X-Amz-Signature=", "X-Amz-Signature=0"), "SignatureDoesNotMatch"),
        (download.url.replace("eu-west-1%2Fs3", "us-east-1%2Fs3"), "AuthorizationQueryParametersError"),
        (download.url.replace("/a?", "/b?"), "SignatureDoesNotMatch"),
    ):
        with pytest.raises(Refusal, match=code):
            account.s3.fetch(url)


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


def s3_with(objects: dict[str, bytes]) -> tuple[FakeAccount, Any]:
    """An account, and its S3 with a bucket of these objects."""
    account = FakeAccount(services=())
    client = account.client("s3", "us-east-1")
    client.create_bucket(Bucket="sets")
    for key, body in objects.items():
        client.put_object(Bucket="sets", Key=key, Body=body)
    return account, client


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
        response = requests.get(url, headers=headers, timeout=60)
        whole = response.status_code < 400
        facts = {name: response.headers.get(name) for name in ("ETag", "Content-Range", "Content-Length") if whole}
        return response.status_code, facts, response.content if whole else b""

    ours = answer(f"{site.address}/key")
    with mock_aws():
        _, client = s3_with({"key": site.files["key"]})
        s3s = answer(client.generate_presigned_url("get_object", {"Bucket": "sets", "Key": "key"}))
    assert ours == s3s


@pytest.mark.parametrize("error", [errno.ESTALE, errno.EIO])
def test_a_file_of_another_source_that_cannot_be_seen_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    cat, dog, path = tmp_path / "cat", tmp_path / "dog", tmp_path / "1.jpg"
    cat.write_text("a cat")
    dog.write_text("a dog")
    log = fetch.FetchLog(str(tmp_path))
    log.install("cats", str(cat), str(path))
    TransientErrors(monkeypatch.setattr).add("stat", str(path), error)
    with pytest.raises(OSError, match=re.escape(os.strerror(error))):
        log.install("dogs", str(dog), str(path))
    with pytest.raises(ValueError, match="is in another of the sources too"):
        log.install("dogs", str(dog), str(path))
    assert path.read_text() == "a cat"
