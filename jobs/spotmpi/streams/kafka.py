"""Topics of Kafka as sources: ``kafka://BROKER:PORT,BROKER:PORT/TOPIC?PROPERTY=VALUE``, each partition one part.

A run reads the offsets that partitions have when it begins; the source list records them, so that each attempt reads
the same. Properties are those of librdkafka, such as ``security.protocol=SASL_SSL``; a value ``$NAME`` is that of a
variable of the environment, so that no password has to be in a spec.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from spotmpi.streams.errors import SourceError, StreamError
from spotmpi.streams.order import Part, Slice

if TYPE_CHECKING:
    from confluent_kafka import Consumer

_SCHEME = "kafka://"
_TIMEOUT = 30.0  # seconds for an answer of a broker
_POLL = 1.0
_MESSAGES = 1000  # of one request
_SETTINGS = {
    "group.id": "spotmpi-stream",  # required by the client; offsets are never committed, and no group is joined
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
}


class Topic(NamedTuple):
    """What a source names: the brokers, the topic, and properties of the client."""

    brokers: str
    name: str
    properties: dict[str, str]


def is_topic(source: str) -> bool:
    """Whether a source is a topic of Kafka."""
    return source.startswith(_SCHEME)


def parse(source: str) -> Topic:
    """The topic that a source names; StreamError where it names none."""
    parts = urlsplit(source)
    name = unquote(parts.path.strip("/"))
    if not parts.netloc or not name or "/" in name:
        raise StreamError(f"the source {source.partition('?')[0]} names no topic: write kafka://BROKER:9092/TOPIC")
    properties = {key: _value(source, value) for key, value in parse_qsl(parts.query, keep_blank_values=True)}
    return Topic(parts.netloc, name, properties)


def _value(source: str, value: str) -> str:
    if not value.startswith("$"):
        return value
    if value[1:] not in os.environ:
        remedy = "give it to the run by `env_passthrough`, `env` or `kubernetes.secret_env`"
        raise StreamError(f"the source {source.partition('?')[0]} needs the variable {value[1:]}: {remedy}")
    return os.environ[value[1:]]


def partitions(source: str, record: Sequence[Part] = ()) -> list[Part]:
    """The partitions of a topic with their offsets: those of *record* if the run has one, else all that there are now.

    Raises:
        StreamError: there is no such topic, or messages of the record are no longer kept.
        SourceError: no broker answers.
    """
    topic, consumer = parse(source), _consumer(source)
    import confluent_kafka

    try:
        metadata = consumer.list_topics(topic.name, timeout=_TIMEOUT).topics[topic.name]
        if metadata.error is not None or not metadata.partitions:
            raise StreamError(
                f"the brokers {topic.brokers} have no topic {topic.name}: {metadata.error or 'no partition'}"
            )
        ranges = {}
        for number in sorted(metadata.partitions):
            begin, end = consumer.get_watermark_offsets(
                confluent_kafka.TopicPartition(topic.name, number), timeout=_TIMEOUT
            )
            ranges[number] = (begin, end)
    except confluent_kafka.KafkaException as error:
        raise SourceError(f"the topic {topic.name} of {topic.brokers} cannot be listed: {_text(error)}") from error
    if not record:
        return [part_of(topic.name, number, begin, end) for number, (begin, end) in ranges.items()]
    for part in record:
        check_retention(part, ranges)
    return list(record)


def part_of(topic: str, partition: int, begin: int, end: int) -> Part:
    """The part for the offsets from *begin* to *end* - 1 of a partition."""
    return Part(f"{topic}/{partition}", end - begin, 0, f"offsets {begin} to {end}")


def offsets(part: Part) -> tuple[int, int]:
    """The offsets *begin* and *end* of `part_of`."""
    _, begin, _, end = part.version.split()
    return int(begin), int(end)


def check_retention(part: Part, ranges: dict[int, tuple[int, int]]) -> None:
    """Raise StreamError unless the brokers still have all messages of a part."""
    begin, end = offsets(part)
    first, last = ranges.get(int(part.name.rpartition("/")[2]), (0, 0))
    if begin < end and not first <= begin <= end <= last:
        raise StreamError(
            f"{part.name} no longer has the {part.version} with which the run began, but those from {first} to {last}: "
            "start a new run, and let the topic keep messages for longer (retention.ms)"
        )


def read_messages(source: str, slices: Sequence[Slice]) -> list[dict[str, Any]]:
    """The messages of *slices*: dictionaries with key, value (bytes or None), partition, offset, timestamp (ms).

    Offsets without a message, such as those of transactions, are left out.

    Raises:
        StreamError: messages are no longer kept.
        SourceError: the brokers do not answer.
    """
    return [message for each in slices for message in _read(source, each)]


def _read(source: str, rows: Slice) -> list[dict[str, Any]]:
    import confluent_kafka

    topic, consumer = parse(source), _consumer(source)
    number = int(rows.part.name.rpartition("/")[2])
    begin, _ = offsets(rows.part)
    start, stop = begin + rows.start, begin + rows.stop
    messages: list[dict[str, Any]] = []
    consumer.assign([confluent_kafka.TopicPartition(topic.name, number, start)])
    deadline = time.monotonic() + _TIMEOUT
    try:
        while True:
            for message in consumer.consume(min(_MESSAGES, stop - start), _POLL):
                error = message.error()
                if error and error.code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET:
                    raise StreamError(f"{rows} are no longer kept by the topic: start a new run")
                if error and error.code() != confluent_kafka.KafkaError._PARTITION_EOF:
                    raise SourceError(f"{rows} cannot be read: {error.str()}")
                offset = message.offset()
                assert offset is not None  # messages and ends of partitions have one
                if not error and offset < stop:
                    messages.append(_row(message))
                    deadline = time.monotonic() + _TIMEOUT
                if error or offset >= stop - 1:
                    return messages
            if time.monotonic() > deadline:
                raise SourceError(f"{rows} cannot be read: {topic.brokers} sent nothing for {_TIMEOUT:.0f} s")
    except confluent_kafka.KafkaException as error:
        raise SourceError(f"{rows} cannot be read: {_text(error)}") from error
    finally:
        consumer.unassign()


def _row(message: Any) -> dict[str, Any]:
    return {
        "key": message.key(),
        "value": message.value(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": message.timestamp()[1],
    }


@functools.lru_cache(maxsize=4)
def _consumer(source: str) -> Consumer:
    """The client of a worker for a source, with its connections."""
    try:
        import confluent_kafka
    except ModuleNotFoundError:
        remedy = "install spotmpi[kafka], or add confluent-kafka to the image"
        raise StreamError(
            f"the source {source.partition('?')[0]} cannot be read without confluent-kafka: {remedy}"
        ) from None
    topic = parse(source)
    try:
        return confluent_kafka.Consumer({"bootstrap.servers": topic.brokers, **_SETTINGS, **topic.properties})
    except (confluent_kafka.KafkaException, ValueError) as error:
        raise StreamError(f"the source {source.partition('?')[0]}: {_text(error)}") from error


def _text(error: Exception) -> str:
    """What an error of the client says."""
    first = error.args[0] if error.args else error
    return str(first.str()) if hasattr(first, "str") else str(error)
