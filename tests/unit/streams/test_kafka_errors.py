"""What is said where brokers do not answer, refuse a client or lack something: the cause, and what helps."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from spotmpi.spec.source import read_spec
from spotmpi.streams import kafka, topics
from spotmpi.streams.errors import SourceError, StreamError


@pytest.fixture
def web() -> Iterator[str]:
    """The address of what answers as a web server does."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(100)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


REFUSED = "no broker listens there: check host and port, and whether it runs"
RESOLVE = "check the name; one that is not in the address is in advertised.listeners of the brokers"


@pytest.mark.parametrize(
    ("brokers", "cause", "remedy"),
    [
        ("absent.invalid:9092", "Failed to resolve 'absent.invalid:9092': Name or service not known", RESOLVE),
        ("127.0.0.1:1", "Connect to ipv4#127.0.0.1:1 failed: Connection refused", REFUSED),
        (
            "WEB",
            "Receive failed: Invalid response size .*",
            "something else than Kafka, or Kafka with TLS, answers there: .*",
        ),
        (
            "WEB?security.protocol=SSL",
            "SSL handshake failed: .*",
            "check security.protocol, the port and ssl.ca.location",
        ),
    ],
)
def test_brokers_that_do_not_answer_are_named_with_the_cause_and_what_helps(
    web: str, brokers: str, cause: str, remedy: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It was "Broker transport failure", below twenty lines a second of librdkafka."""
    monkeypatch.setattr(topics, "TIMEOUT", 1.0)
    kafka._consumer.cache_clear()
    address, _, query = brokers.replace("WEB", web).partition("?")
    with pytest.raises(SourceError) as raised:
        kafka.partitions(f"kafka://{address}/t?{query}")
    assert re.fullmatch(rf"the topic t of {address} cannot be listed: .*{cause}; {remedy}", str(raised.value))
    assert "(after" not in str(raised.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("heard", "cause", "remedy"),
    [  # of Kafka 4 with SASL
        (
            (
                KafkaError._AUTHENTICATION,
                "b/1: SASL authentication error: Authentication failed: Invalid username or password",
            ),
            "b/1: SASL authentication error: Authentication failed: Invalid username or password",
            "check security.protocol, sasl.mechanism, sasl.username and sasl.password",
        ),
        (
            (
                KafkaError._TRANSPORT,
                "b/1: Disconnected: connecting to a PLAINTEXT broker listener? "
                "(after 9ms in state X, 1 identical error(s) suppressed)",
            ),
            "b/1: Disconnected: connecting to a PLAINTEXT broker listener?",
            "check host, port and security.protocol, and that a firewall lets this machine connect",
        ),
        (
            (KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"),
            "no answer",
            "check host, port and security.protocol, and that a firewall lets this machine connect",
        ),
    ],
)
def test_what_the_client_has_met_is_the_cause_of_an_answer_that_did_not_come(
    heard: tuple[int, str], cause: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Client:
        """Tells what it has met when it is polled, as that of confluent-kafka."""

        def __init__(self, settings: dict[str, Any]) -> None:
            self._tell = settings["error_cb"]

        def poll(self, timeout: float) -> None:
            self._tell(KafkaError(*heard))

    monkeypatch.setattr("confluent_kafka.Producer", Client)
    address = "kafka://b:9092/t"
    client = topics.client("Producer", address, "output", {})
    assert topics.reason(KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer")), address, client) == (
        f"{cause}; {remedy}"
    )


@pytest.mark.parametrize(
    ("met", "begins", "timeouts"),
    [
        ([KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN], True, [3, 7]),
        ([KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN], False, [3, 27]),
        ([KafkaError._TRANSPORT], True, [3, 27]),  # another broker may answer
        ([], True, [3, 27]),  # no try has ended yet
    ],
)
def test_whoever_waits_for_brokers_is_told_soon_and_no_new_run_waits_long_for_those_that_refuse_it(
    met: list[int],
    begins: bool,
    timeouts: list[int],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Each of three attempts waited 30 s in silence."""

    class Client:
        """Tells once what it has met, as that of confluent-kafka, and lists no topic."""

        def __init__(self, settings: dict[str, Any]) -> None:
            self._tell, self._met = settings["error_cb"], list(met)
            self.timeouts: list[float] = []

        def poll(self, timeout: float) -> None:
            while self._met:
                self._tell(KafkaError(self._met.pop(0), "refused"))

        def list_topics(self, topic: str, timeout: float) -> None:
            self.timeouts.append(timeout)
            raise KafkaException(KafkaError(KafkaError._TRANSPORT, "no answer"))

    monkeypatch.setattr("confluent_kafka.Consumer", Client)
    monkeypatch.setattr(topics, "_said", {})
    address = "kafka://b:9092/t"
    client = topics.client("Consumer", address, "source", {})
    cause = f"refused; {REFUSED}" if met else "no answer; check host, port and security.protocol, and .* connect"
    with pytest.raises(SourceError, match=f"^the topic t of b:9092 cannot be listed: {cause}$"):
        topics.partitions(address, "source", client, begins)
    assert client.timeouts == timeouts
    assert re.fullmatch(f"waiting for the topic t of b:9092: {cause}\n", capfd.readouterr().err)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, r"brokers b:9092 have no topic t: Broker: [^{}]*; create it"),
        (
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            r"the topic t of b:9092 cannot be listed: .*; let the user .* describe the topic",
        ),
    ],
)
def test_a_topic_that_a_user_may_not_see_is_not_to_be_created(code: int, message: str) -> None:
    class Client:
        """Lists a topic with an error."""

        def list_topics(self, topic: str, timeout: float) -> Any:
            return SimpleNamespace(topics={topic: SimpleNamespace(error=KafkaError(code), partitions={})})

    with pytest.raises(StreamError, match=message):
        topics.partitions("kafka://b:9092/t", "source", Client())


def test_a_property_that_the_client_does_not_know_is_named() -> None:
    with pytest.raises(StreamError, match=r'^the source kafka://b/t: No such .* "sasl.user"; correct the property'):
        topics.client("Consumer", "kafka://b/t?sasl.user=me", "source", {"group.id": "g"})


@pytest.mark.parametrize(
    ("address", "shown", "remedy"),
    [
        (
            "kafka://me:secret@b:9092/t",
            "kafka://b:9092/t",
            "has a login in front of the brokers: write ?sasl.username=",
        ),
        ("kafka://a:9092,b:99999/t", "kafka://a:9092,b:99999/t", "has a port above 65535: correct it"),
        ("kafka://b:9092", "kafka://b:9092", "names no topic: write kafka://BROKER:9092/TOPIC"),
    ],
)
@pytest.mark.parametrize("key", ["source", "write"])
def test_an_address_that_names_no_topic_of_brokers_is_refused_before_the_start(
    key: str, address: str, shown: str, remedy: str
) -> None:
    """That of a source was found by a worker; librdkafka connects to port 34463 for 99999."""
    spec = read_spec({"stream": {"source": "a.csv", "batch": 1, key: address}})
    assert spec.stream
    (problem,) = spec.stream.problems()
    assert (problem.field, problem.value) == (f"stream.{key}", shown)
    assert problem.remedy.startswith(remedy)
