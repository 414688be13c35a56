"""Predictions into a topic: each result once. By day the brokers are a double, at night a real one."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from hypothesis import given
from hypothesis import strategies as st

from spotmpi.streams import topic_sink
from spotmpi.streams.errors import SourceError, StreamError, StreamLost
from spotmpi.streams.results import encode
from spotmpi.streams.topic_sink import SinkIdentity, TopicSink, extended, numbers_of
from tests.contract.conftest import local_harness
from tests.testbed.java_servers import java_installed, kafka_broker
from tests.unit.streams import stages
from tests.unit.streams.kafka_double import Broker

at_night = [
    pytest.mark.nightly("a broker of Java starts for 10 s; by day its double has the same tests"),
    pytest.mark.skipif(not java_installed(), reason="needs Java and Maven: scripts/java-packages"),
    pytest.mark.timeout(600),
]
PARTITIONS = 3


class Doubled:
    """Topics of the double."""

    address = "double:9092"

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker = Broker()
        monkeypatch.setattr(confluent_kafka, "Producer", self.broker.producer)
        monkeypatch.setattr(confluent_kafka, "Consumer", self.broker.consumer)

    def create(self, topic: str) -> None:
        self.broker.topics[topic] = PARTITIONS

    def names(self) -> set[str]:
        return set(self.broker.topics)

    def messages(self, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
        return sorted(self.broker.messages[topic], key=repr)


class Real:
    """Topics of a real broker."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._admin = AdminClient({"bootstrap.servers": address})

    def create(self, topic: str) -> None:
        self._admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()

    def names(self) -> set[str]:
        return set(self._admin.list_topics(timeout=30).topics)

    def messages(self, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
        """What a reader of committed messages gets, up to the end of each partition."""
        settings = {"bootstrap.servers": self.address, "group.id": "test", "isolation.level": "read_committed"}
        consumer = confluent_kafka.Consumer({**settings, "enable.partition.eof": True, "enable.auto.commit": False})
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        messages, ends = [], 0
        while ends < PARTITIONS:
            message = consumer.poll(30)
            assert message is not None, "no answer"
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ends += 1
            else:
                messages.append((message.partition() or 0, message.key(), message.value()))
        consumer.close()
        return sorted(messages, key=repr)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real broker."""
    with kafka_broker(tmp_path_factory.mktemp("kafka") / "broker") as address:
        yield address


@pytest.fixture(params=["double", pytest.param("real", marks=at_night)])
def kafka(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Doubled | Real:
    """Both kinds of brokers."""
    if request.param == "double":
        return Doubled(monkeypatch)
    return Real(request.getfixturevalue("broker"))


class Texts(dict[str, str]):
    """What rank 0 gives to other ranks."""

    def publish(self, name: str, text: str) -> None:
        self[name] = text

    def receive(self, name: str) -> str:
        return self[name]


class Run:
    """A run whose results go to a topic of its own."""

    def __init__(self, kafka: Doubled | Real, name: str, folder: Path) -> None:
        self.kafka, self.name = kafka, name
        self._record = folder / "stream" / "topics.json"
        kafka.create(name)

    def attempt(self, number: int, ranks: int) -> list[TopicSink]:
        """The sinks of all ranks of an attempt."""
        texts = Texts()
        return [self.sink(number, rank, ranks, texts) for rank in range(ranks)]

    def sink(self, attempt: int, rank: int, ranks: int, texts: Texts) -> TopicSink:
        address = f"kafka://{self.kafka.address}/{self.name}"
        return TopicSink(address, SinkIdentity(f"run-{self.name}", attempt, rank, ranks), texts, self._record)

    def messages(self) -> list[tuple[int, bytes | None, bytes | None]]:
        return self.kafka.messages(self.name)

    def numbers(self) -> list[int]:
        """The numbers of batches of which the topic has results."""
        return sorted(json.loads(value or b"")["batch"] for _, _, value in self.messages())


@pytest.fixture
def run(kafka: Doubled | Real, request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    return Run(kafka, request.node.originalname.removeprefix("test_")[:40], tmp_path)


def results(*numbers: int) -> list[tuple[int, Any]]:
    """One row for each batch."""
    return [(number, encode("kafka://b/t", "flow:predict", number, [{"batch": number}])) for number in numbers]


def test_a_later_attempt_writes_what_is_missing_with_any_number_of_ranks(run: Run) -> None:
    first = run.attempt(1, 2)
    assert [sink.missing(range(12)) for sink in first] == [list(range(12))] * 2
    first[0].write(results(0, 2, 4))
    first[0].write(results(6))
    first[1].write(results(1))
    second = run.attempt(2, 3)
    assert [sink.missing(range(12)) for sink in second] == [[3, 5, 7, 8, 9, 10, 11]] * 3
    second[0].write(results(3))
    second[2].write(results(5, 11))
    (third,) = run.attempt(3, 1)
    assert third.missing(range(12)) == [7, 8, 9, 10]
    third.write(results(7, 8, 9, 10))
    assert run.numbers() == list(range(12))


def test_an_attempt_before_writes_nothing_more(run: Run) -> None:
    before = run.attempt(1, 2)
    before[0].write(results(0))
    (now,) = run.attempt(2, 1)
    for rank, sink in enumerate(before):
        with pytest.raises(StreamLost, match="a newer attempt of the run does"):
            sink.write(results(2 + rank))
    now.write(results(1, 2, 3))
    assert run.numbers() == [0, 1, 2, 3]


def test_a_rank_of_an_attempt_before_that_comes_late_is_refused(run: Run) -> None:
    texts = Texts()
    run.sink(1, 0, 2, texts)
    run.attempt(2, 1)
    for rank in (1, 0):
        with pytest.raises(StreamLost, match="attempt 2 of the run writes to the topic"):
            run.sink(1, rank, 2, texts)


def test_what_a_killed_process_had_begun_is_not_in_the_topic(run: Run) -> None:
    (killed,) = run.attempt(1, 1)
    killed.write(results(0))
    killed._producer.begin_transaction()
    for number, (message,) in results(1, 2):
        killed._produce(killed._producer, number, message)
    (next_one,) = run.attempt(2, 1)
    assert next_one.missing(range(4)) == [1, 2, 3]
    next_one.write(results(1, 2, 3))
    assert run.numbers() == [0, 1, 2, 3]


def test_messages_have_keys_or_the_partition_of_their_batch(run: Run) -> None:
    (sink,) = run.attempt(1, 1)
    rows = [b"raw", "text", {"key": "k", "value": b"v"}, {"key": "k", "value": None}, {"value": 1.5}, {"x": 1, "y": 2}]
    sink.write([(number, encode("kafka://b/t", "flow:predict", number, rows)) for number in (4, 5)])
    sink.write([(6, [])])
    with_key, without = ([each for each in run.messages() if (each[1] is None) == empty] for empty in (False, True))
    assert sorted(without) == sorted(
        (number % 3, None, value)
        for number in (4, 5)
        for value in (b"raw", b"text", b'{"value": 1.5}', b'{"x": 1, "y": 2}')
    )
    assert [(key, value) for _, key, value in with_key] == [(b"k", None), (b"k", None), (b"k", b"v"), (b"k", b"v")]
    assert run.attempt(2, 1)[0].missing(range(7)) == [0, 1, 2, 3]


def test_a_topic_that_does_not_exist_is_named_and_not_created(kafka: Doubled | Real, tmp_path: Path) -> None:
    address = f"kafka://{kafka.address}/absent-output"
    with pytest.raises(StreamError, match=r"have no topic absent-output: .*; create it"):
        TopicSink(address, SinkIdentity("run", 1, 0, 1), Texts(), tmp_path / "topics.json")
    assert "absent-output" not in kafka.names()


def test_a_message_that_is_too_large_ends_the_run_and_leaves_nothing_of_its_transaction(run: Run) -> None:
    (sink,) = run.attempt(1, 1)
    large = encode("kafka://b/t", "flow:predict", 1, [b"x" * 3_000_000])
    with pytest.raises(StreamError, match=r"the topic .* cannot take results: .*[Mm]essage size too large"):
        sink.write([*results(0), (1, large)])
    assert run.messages() == []
    sink.write(results(0))
    assert run.numbers() == [0]


@pytest.mark.parametrize("kafka", ["double"], indirect=True)
class TestOnTheDouble:
    """What a real broker does not do when asked."""

    def test_a_transaction_that_has_to_be_aborted_is_repeated_after_a_pause(
        self, run: Run, kafka: Doubled, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A coordinator moves within seconds, and not within the milliseconds that five tries take."""
        pauses: list[float] = []
        monkeypatch.setattr(time, "sleep", pauses.append)
        (sink,) = run.attempt(1, 1)
        error = KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE, "moved", txn_requires_abort=True)
        kafka.broker.faults["send_offsets_to_transaction"] = [(error, False)] * 2
        kafka.broker.faults["commit_transaction"] = [(error, False)]
        sink.write(results(0, 1))
        assert run.numbers() == [0, 1] and pauses == [0.2, 1.0, 2.0]
        kafka.broker.faults["send_offsets_to_transaction"] = [(error, False)] * 5
        with pytest.raises(SourceError, match="cannot take results: moved"):
            sink.write(results(2))
        assert pauses[3:] == list(topic_sink.PAUSES)

    @pytest.mark.parametrize("is_effective", [True, False])
    def test_a_commit_without_an_answer_is_repeated(self, run: Run, kafka: Doubled, is_effective: bool) -> None:
        (sink,) = run.attempt(1, 1)
        error = KafkaError(KafkaError._TIMED_OUT, "no answer", retriable=True)
        kafka.broker.faults["commit_transaction"] = [(error, is_effective)]
        sink.write(results(0))
        assert run.numbers() == [0]

    def test_brokers_that_do_not_answer_end_the_attempt_and_the_next_one_goes_on(
        self, run: Run, kafka: Doubled
    ) -> None:
        (sink,) = run.attempt(1, 1)
        error = KafkaError(KafkaError._TIMED_OUT, "no answer", retriable=True)
        kafka.broker.faults["commit_transaction"] = [(error, False)] * 5
        with pytest.raises(SourceError, match="cannot take results: no answer"):
            sink.write(results(0))
        (sink,) = run.attempt(2, 1)
        assert sink.missing(range(2)) == [0, 1]

    def test_brokers_that_have_forgotten_what_was_written_are_not_given_it_again(
        self, run: Run, kafka: Doubled
    ) -> None:
        run.attempt(1, 1)[0].write(results(0))
        kafka.broker.offsets.clear()
        with pytest.raises(StreamError, match=r"have forgotten which results .*: .* offsets.retention.minutes"):
            run.attempt(2, 1)

    def test_a_record_that_a_machine_has_lost_with_its_power_is_made_again(
        self, run: Run, kafka: Doubled, tmp_path: Path
    ) -> None:
        run.attempt(1, 1)[0].write(results(0))
        (record,) = tmp_path.rglob("topics.json")
        written = record.read_text()
        record.write_text("")
        assert run.attempt(2, 1)[0].missing(range(2)) == [1] and record.read_text() == written
        record.write_text("")
        kafka.broker.offsets.clear()
        with pytest.raises(StreamError, match="have forgotten which results"):
            run.attempt(3, 1)


@pytest.mark.nightly("a broker of Java starts for 10 s; by day its double has the tests of the sink")
@pytest.mark.skipif(not java_installed(), reason="needs Java and Maven: scripts/java-packages")
@pytest.mark.timeout(600)
def test_a_run_that_loses_a_process_of_each_stage_writes_each_result_once(broker: str, tmp_path: Path) -> None:
    kafka = Real(broker)
    kafka.create("stages")
    values = {
        "command": [sys.executable, "-m", "spotmpi.streams.rank", "predict", "flow:predict"],
        "launcher": "none",
        "files": stages.write_files(tmp_path, str(tmp_path)),
        "stream": stages.stream(str(tmp_path / "data.csv"), write=f"kafka://{broker}/stages"),
        "limits": {"failures": 1},
    }
    for local in local_harness(tmp_path / "runs"):
        events = local.all_events(values)
    assert events[-1].kind == "succeeded"
    assert {"prepare", "predict", "postprocess"} <= {path.name for path in tmp_path.iterdir()}
    written = sorted((partition, value) for partition, _, value in kafka.messages("stages"))
    assert written == sorted(
        (number % PARTITIONS, message.value)
        for number, columns in stages.expected()
        for message in encode("kafka://b/t", "flow:postprocess", number, columns)
    )


@given(st.lists(st.integers(0, 200), unique=True).map(sorted), st.integers(0, 50))
def test_the_numbers_of_batches_are_kept_whatever_is_left_out(numbers: list[int], split: int) -> None:
    progress = extended(extended([], numbers[:split]), numbers[split:])
    assert numbers_of(progress) == numbers


def test_a_rank_that_leaves_nothing_out_has_a_short_record() -> None:
    assert extended([], range(3, 3000, 64)) == [[3, 64, 47]]
