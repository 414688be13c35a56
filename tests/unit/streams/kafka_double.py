"""A double of Kafka's transactions: a broker in memory, with the `Producer` and `Consumer` of confluent-kafka for it.

The tests of `test_topic_sink` run against this double by day and against a real broker (tests/testbed/java_servers.py)
at night; what it does is what the same tests found there. Errors are the client's own. Scripted faults are those that
the documentation of librdkafka names for each call (Transactional Producer API, INTRODUCTION.md).
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

Message = tuple[int, bytes | None, bytes | None]  # partition, key, value
MAX_MESSAGE = 1_000_000  # bytes, as message.max.bytes of the client


class Broker:
    """Topics, transactions and the offsets of groups.

    Attributes:
        faults: errors that the next calls of a name raise, each with whether the call has its effect nevertheless.
    """

    def __init__(self) -> None:
        self.topics: dict[str, int] = {}
        self.messages: dict[str, list[Message]] = defaultdict(list)  # that are committed
        self.offsets: dict[tuple[str, str], TopicPartition] = {}
        self.epochs: dict[str, int] = defaultdict(int)
        self.faults: dict[str, list[tuple[KafkaError, bool]]] = defaultdict(list)

    def producer(self, settings: dict[str, Any]) -> Producer:
        """In place of ``confluent_kafka.Producer``."""
        return Producer(self, settings["transactional.id"])

    def consumer(self, settings: dict[str, Any]) -> Consumer:
        """In place of ``confluent_kafka.Consumer``."""
        return Consumer(self, settings["group.id"])


class Producer:
    """A transactional producer, which a later one of the same name fences off."""

    def __init__(self, broker: Broker, name: str) -> None:
        self._broker, self._name = broker, name
        self._epoch = -1
        self._messages: list[tuple[str, Message]] | None = None
        self._offsets: dict[tuple[str, str], TopicPartition] = {}

    def init_transactions(self, timeout: float) -> None:
        self._broker.epochs[self._name] += 1
        self._epoch = self._broker.epochs[self._name]

    def begin_transaction(self) -> None:
        assert self._messages is None, "a transaction is open"
        self._messages, self._offsets = [], {}

    def produce(self, topic: str, value: Any = None, key: Any = None, partition: int = 0) -> None:
        if len(value or b"") > MAX_MESSAGE:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        assert self._messages is not None
        self._messages.append((topic, (partition, key, value)))

    def send_offsets_to_transaction(self, offsets: list[TopicPartition], group: str, timeout: float) -> None:
        self._require_current()
        self._fail("send_offsets_to_transaction")
        self._offsets = {(group, each.topic): each for each in offsets}

    def commit_transaction(self, timeout: float) -> None:
        self._require_current()
        failure = self._broker.faults["commit_transaction"]
        error, is_effective = failure.pop(0) if failure else (None, True)
        if is_effective and self._messages is not None:
            for topic, message in self._messages:
                self._broker.messages[topic].append(message)
            self._broker.offsets.update(self._offsets)
        if is_effective:
            self._messages = None
        if error is not None:
            raise KafkaException(error)

    def abort_transaction(self, timeout: float) -> None:
        self._require_current()
        self._messages = None

    def _fail(self, call: str) -> None:
        if self._broker.faults[call]:
            raise KafkaException(self._broker.faults[call].pop(0)[0])

    def _require_current(self) -> None:
        if self._epoch != self._broker.epochs[self._name]:
            raise KafkaException(KafkaError(KafkaError._FENCED, "fenced by a newer producer", fatal=True))


class Consumer:
    """A consumer that lists topics and reads the offsets of its group."""

    def __init__(self, broker: Broker, group: str) -> None:
        self._broker, self._group = broker, group

    def list_topics(self, topic: str, timeout: float) -> Any:
        count = self._broker.topics.get(topic, 0)
        error = None if count else KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return SimpleNamespace(topics={topic: SimpleNamespace(error=error, partitions=dict.fromkeys(range(count)))})

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return [self._broker.offsets.get((self._group, each.topic), each) for each in partitions]

    def consumer_group_metadata(self) -> str:
        return self._group
