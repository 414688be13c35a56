"""What a Job of the cluster does to fetch data: pieces, checks, faults, and what it finds there already."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from moto import mock_aws

from spotmpi.agent import fetch, store
from spotmpi.core.errors import InputError, SpotmpiError
from spotmpi.data.remote_source import Order, authority_of, orders_of
from tests.cloud.account.fake_account import FakeAccount
from tests.testbed.certificates import Authority
from tests.unit.data.conftest import PIECE, WEIGHTS, Volume, sha
from tests.unit.data.web_site import Site, serving


def test_a_tar_comes_in_pieces_is_checked_and_unpacked(
    volume: Volume, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    size = len(site.files["set.tar"])
    order = site.order("set.tar", str(volume.folder), sha(site.files["set.tar"]))

    assert volume.fetch([order]) == (0, {"done": [[1, 100_000, 1]]})
    assert volume.tree() == {"VOCdevkit/big": bytes(100_000)}
    assert len(site.ranges) == 1 + -(-size // PIECE)
    message = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert message[-2:] == [
        {"name": "set.tar", "got": size, "of": size, "whole": 1, "all": 1},
        {"done": [[1, 100_000, 1]]},
    ]


def test_several_sources_are_distinguished_and_a_second_fetch_downloads_nothing(volume: Volume, site: Site) -> None:
    folder = str(volume.folder)
    site.files |= {f"part-{number}": b"p" * number for number in range(6)}
    parts = [site.order(f"part-{number}", folder) for number in range(6)]

    code, result = volume.fetch([site.order("set.tar", folder)], parts)
    assert (code, result) == (0, {"done": [[1, 100_000, 1], [6, 15, 6]]})
    assert volume.tree() == {"VOCdevkit/big": bytes(100_000)} | {f"part-{n}": b"p" * n for n in range(6)}

    (volume.folder / "part-3").unlink()
    before = len(site.ranges)
    code, result = volume.fetch([site.order("set.tar", folder)], parts)
    assert (code, result) == (0, {"done": [[1, 100_000, 0], [6, 15, 1]]})
    assert len(site.ranges) - before == 7 + 1  # each is looked at, one is read


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
    orders = volume.write([site.order(name, folder) for name in names])
    pod = subprocess.Popen([sys.executable, "-m", "spotmpi.agent.fetch", str(orders), str(volume.authority)])
    while len(site.ranges) < site.free + fetch.FILES_AT_ONCE:
        assert pod.poll() is None
        time.sleep(0.01)

    pod.send_signal(signal.SIGTERM)

    assert pod.wait(30) == fetch.INTERRUPTED  # though the site still holds its answers back
    site.open.set()
    code, result = volume.fetch([site.order(name, folder) for name in names])
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
    code, result = volume.fetch([site.order("set.tar", str(volume.folder), "0" * 64)])
    assert code == 78 and "set.tar: the SHA-256 of the file is not the given one" in result["failed"]
    site.pieces = False
    code, result = volume.fetch([site.order("set.tar", str(volume.folder))])
    assert code == 78 and "the server does not support range requests (status 200)" in result["failed"]
    assert volume.tree() == {} and [each.name for each in volume.folder.iterdir()] == []


def test_a_site_of_an_own_authority_is_trusted_only_where_that_is_named(
    volume: Volume, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("urllib.request._opener", None)
    authority = Authority(tmp_path / "keys")
    with serving(credential=authority.issue("site", hosts=["127.0.0.1"])) as site:
        site.files = {"weights.npz": WEIGHTS}
        order = site.order("weights.npz", str(volume.folder), sha(WEIGHTS))

        code, result = volume.fetch([order])
        assert (code, site.ranges) == (78, [])
        assert "certificate not trusted (unable to get local issuer certificate); use --ca FILE" in result["failed"]
        volume.authority.write_text(authority_of(authority.certificate))
        assert volume.fetch([order]) == (0, {"done": [[1, 50_000, 1]]})
    for text in ("", "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"):
        (tmp_path / "bad.pem").write_text(text)
        with pytest.raises(InputError, match=r"--ca = .*bad.pem.*not a file of PEM certificates"):
            authority_of(tmp_path / "bad.pem")


def test_a_full_volume_is_a_permanent_failure(volume: Volume, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    code, result = volume.fetch_weights(site)
    assert code == 78 and result["failed"] == "weights.npz: [Errno 28] No space left on device"


def test_notes_that_were_torn_cost_only_time(volume: Volume, site: Site) -> None:
    volume.fetch_weights(site)
    (volume.folder / f".fetched{store.PART}").write_text('{"mark": "12", "vers\n[]\n')
    assert volume.fetch_weights(site) == (0, {"done": [[1, 50_000, 1]]})


def test_an_address_needs_https_and_a_checksum() -> None:
    good = "0" * 64
    assert orders_of(f"https://x.org/a/set.tar.gz#sha256={good}") == [
        Order("https://x.org/a/set.tar.gz", "set.tar.gz", good)
    ]
    assert orders_of(f"https://x.org/a.tgz#sha256={good}")[0].values("/v")["unpack"] is True
    for text, message in (
        ("https://x.org/a.tar", "needs its SHA-256"),
        ("https://x.org/a.tar#sha256=12", "has a malformed SHA-256"),
        (f"http://x.org/a.tar#sha256={good}", "is not encrypted"),
        (f"https://x.org/#sha256={good}", "names no file"),
    ):
        with pytest.raises(InputError, match=message):
            orders_of(text)


def test_objects_of_s3_are_fetched_by_signed_addresses_with_their_folders() -> None:
    with mock_aws():
        account = FakeAccount(services=())
        client = account.client("s3", "us-east-1")
        client.create_bucket(Bucket="sets")
        for key in ("voc/2007.tar", "voc/more/2012.tar", "voc/", "vocal"):
            client.put_object(Bucket="sets", Key=key, Body=b"x")

        (one,) = orders_of("s3://sets/voc/2007.tar", account)
        assert (one.name, one.sha256) == ("2007.tar", None) and "Signature" in one.url
        assert [each.name for each in orders_of("s3://sets/voc/", account)] == ["2007.tar", "more/2012.tar"]
        for text, message in (
            ("s3://sets/vo", "no such object"),
            (f"s3://sets/voc/#sha256={'0' * 64}", "a SHA-256 is for one object"),
        ):
            with pytest.raises(InputError, match=message):
                orders_of(text, account)
        with pytest.raises(SpotmpiError, match="NoSuchBucket"):
            orders_of("s3://nobodys/x", account)
