"""One connection over TLS: sizes, pieces, threads, clocks and TLS files, on a pair of sockets."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spotmpi.agent import protocol, ssh
from spotmpi.agent.connection import PROTOCOL, Connection, Identity
from spotmpi.core import certificates as core_certificates
from spotmpi.core.certificates import run_certificates, write_certificates
from tests.unit.agent.peer_ends import LIMIT, Pair, certificates, identity, new_identity

Received = dict[Connection, list[dict[str, Any]]]
LARGE = "x" * 60_000  # one message takes several records, and more than the buffers of the sockets below


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair(identity(), identity())
    assert pair.shake_hands()
    yield pair
    pair.close()


def exchange(pair: Pair, until: Callable[[Received], object]) -> Received:
    """What both ends receive, one after the other, until it is enough."""
    received: Received = {pair.worker: [], pair.node_0: []}
    deadline = time.monotonic() + LIMIT
    while not until(received) and time.monotonic() < deadline:
        for end, messages in received.items():
            messages += end.receive()
    return received


def test_a_large_message_arrives_in_pieces_and_neither_end_waits_for_the_other(pair: Pair) -> None:
    pair.worker.send(notice=LARGE)
    assert pair.worker.has_unsent and not pair.worker.closed
    received = exchange(pair, lambda received: received[pair.node_0])
    assert received == {pair.worker: [], pair.node_0: [{"notice": LARGE}]} and not pair.worker.has_unsent


def test_what_an_end_has_sent_before_it_closed_arrives_though_the_other_sent_in_vain(pair: Pair) -> None:
    pair.node_0.send(over=1)
    pair.node_0.close()
    pair.worker.send(beat=1)
    pair.worker.send(beat=1)
    assert pair.worker.receive() + pair.worker.receive() == [{"over": 1}] and pair.worker.closed


def test_both_ends_send_large_messages_at_once(pair: Pair) -> None:
    for end in (pair.worker, pair.node_0):
        end.send(notice=LARGE)
        end.send(beat=1)
    received = exchange(pair, lambda received: min(map(len, received.values())) == 2)
    assert list(received.values()) == [[{"notice": LARGE}, {"beat": 1}]] * 2


def test_an_end_that_takes_nothing_is_disconnected_before_messages_fill_the_memory(pair: Pair) -> None:
    for _ in range(10):
        pair.node_0.send(notice=LARGE)
    assert pair.node_0.closed


@pytest.mark.parametrize("text", ["x" * 200_000, "[" * 200_000], ids=["long", "deep"])
def test_a_line_far_above_the_limit_ends_the_connection(pair: Pair, text: str) -> None:
    pair.worker.send(notice=text)
    assert not any(exchange(pair, lambda received: pair.node_0.closed).values())
    assert pair.node_0.closed


def test_messages_of_two_threads_do_not_mix(pair: Pair) -> None:
    """The heartbeat has a thread of its own, which sends while the agent sends and receives."""
    count = 300

    def send(end: Connection, name: str) -> None:
        for number in range(count):
            end.send(**{name: number})
            while end.has_unsent and not end.closed:
                time.sleep(0.0001)

    ends = (pair.worker, pair.node_0)
    threads = [threading.Thread(target=send, args=(end, name)) for end in ends for name in ("beat", "ready")]
    for thread in threads:
        thread.start()
    received = exchange(pair, lambda received: min(map(len, received.values())) == 2 * count)
    for thread in threads:
        thread.join()
    expected = [{"beat": number} for number in range(count)], [{"ready": number} for number in range(count)]
    for messages in received.values():
        assert tuple([each for each in messages if name in each] for name in ("beat", "ready")) == expected


def test_a_greeting_above_the_limit_ends_the_connection_of_a_client_that_is_not_admitted() -> None:
    pair = Pair(identity(), identity())
    exchange(pair, lambda received: pair.worker.authenticated)
    pair.worker.send(machine="x" * 20_000)
    assert not any(exchange(pair, lambda received: pair.node_0.closed).values())
    assert pair.node_0.closed


def test_the_newest_tls_of_both_ends_is_spoken(pair: Pair) -> None:
    assert pair.worker._tls.version() == pair.node_0._tls.version() == "TLSv1.3"


@pytest.mark.parametrize(
    ("own", "other"),
    [(("plain-1", "one"), ("plain-1", "two")), (("plain-1", "two"), ("plain-1", "one"))],
    ids=["stranger", "impostor"],
)
def test_ends_of_different_runs_do_not_authenticate_each_other(own: tuple[str, str], other: tuple[str, str]) -> None:
    pair = Pair(identity(*own), identity(*other))
    assert not pair.shake_hands() and pair.worker.closed and pair.node_0.closed
    assert "certificate" in pair.worker.failure


def test_a_client_without_a_certificate_is_not_authenticated() -> None:
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname, bare.verify_mode = False, ssl.CERT_NONE
    bare.set_alpn_protocols([PROTOCOL])
    pair = Pair(SimpleNamespace(connecting=bare), identity())
    assert not pair.shake_hands() and pair.node_0.closed and not pair.node_0.authenticated


@pytest.mark.parametrize(
    ("first", "last"), [(datetime(1971, 1, 1), datetime(1972, 1, 1)), (datetime(2900, 1, 1), datetime(2901, 1, 1))]
)
def test_the_clock_of_a_node_does_not_matter(monkeypatch: pytest.MonkeyPatch, first: datetime, last: datetime) -> None:
    """As with a certificate that an environment or a user has made for a certain time."""
    monkeypatch.setattr(core_certificates, "_NOT_BEFORE", first)
    monkeypatch.setattr(core_certificates, "_NOT_AFTER", last)
    own = new_identity(files=run_certificates("plain-1"))
    assert Pair(own, own).shake_hands()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_the_remedy_for_a_secret_without_tls_files_makes_files_that_agents_accept(tmp_path: Path) -> None:
    command = re.search("`(openssl .*)`", ssh.TLS_REMEDY)
    assert command
    subprocess.run(["sh", "-c", command[1]], cwd=tmp_path, check=True, capture_output=True)
    own = Identity("plain-1", str(tmp_path))
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(protocol.TLS_FILES)
    assert Pair(own, own).shake_hands()
    assert not Pair(own, identity()).shake_hands() and not Pair(identity(), own).shake_hands()


def _remove(folder: Path) -> None:
    (folder / protocol.TLS_CA).unlink()
    (folder / protocol.TLS_KEY).unlink()


def _exchange_key(folder: Path) -> None:
    (folder / protocol.TLS_KEY).write_text(certificates("another")[protocol.TLS_KEY])


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (_remove, r"the SSH Secret has no ca\.pem, key\.pem; in an environment `pulumi up` adds them; to a Secret .*"),
        (_exchange_key, r"the TLS files of the SSH Secret cannot be used: .*KEY_VALUES_MISMATCH.*"),
        (lambda folder: (folder / protocol.TLS_CERTIFICATE).write_text("no"), "the TLS files of the .* cannot be used"),
        (lambda folder: (folder / protocol.TLS_CA).write_text(""), "the TLS files of the SSH Secret cannot be used"),
    ],
    ids=["missing", "key of another", "no certificate", "empty authority"],
)
def test_tls_files_that_are_of_no_use_are_reported(tmp_path: Path, spoil: Callable[[Path], object], error: str) -> None:
    spoil(write_certificates(tmp_path, dict(certificates("plain-1"))))
    for end in ("accepting", "connecting"):
        with pytest.raises(ssh.InvalidKeys, match=error):
            getattr(Identity("plain-1", str(tmp_path)), end)
