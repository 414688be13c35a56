"""Topics of Kafka as sources, each partition one part.

A run reads the offsets that partitions have when it begins; the source list records them, so that each attempt reads
the same.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spotmpi.streams import topics
from spotmpi.streams.errors import SourceError, StreamError
from spotmpi.streams.order import Part, Slice

if TYPE_CHECKING:
    from confluent_kafka import Consumer

_POLL = 1.0
_MESSAGES = 1000  # of one request
_SETTINGS = {
    "group.id": "spotmpi-stream",  # required by the client; offsets are never committed, and no group is joined
    "enable.partition.eof": True,
}


def partitions(source: str, record: Sequence[Part] = ()) -> list[Part]:
    """The partitions of a topic with their offsets: those of *record* if the run has one, else all that there are now.

    Raises:
        StreamError: there is no such topic, or messages of the record are no longer kept.
        SourceError: no broker answers.
    """
    topic, consumer = topics.parse(source), _consumer(source)
    import confluent_kafka

    ranges = {}
    try:
        for number in topics.partitions(source, "source", consumer, begins=not record):
            partition = confluent_kafka.TopicPartition(topic.name, number)
            begin, end = consumer.get_watermark_offsets(partition, timeout=topics.TIMEOUT)
            ranges[number] = (begin, end)
    except confluent_kafka.KafkaException as error:
        raise SourceError(f"the topic {topic} cannot be listed: {topics.reason(error, source, consumer)}") from error
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

    topic, consumer = topics.parse(source), _consumer(source)
    number = int(rows.part.name.rpartition("/")[2])
    begin, _ = offsets(rows.part)
    start, stop = begin + rows.start, begin + rows.stop
    messages: list[dict[str, Any]] = []
    consumer.assign([confluent_kafka.TopicPartition(topic.name, number, start)])
    deadline = time.monotonic() + topics.TIMEOUT
    try:
        while True:
            for message in consumer.consume(min(_MESSAGES, stop - start), _POLL):
                error = message.error()
                if error and error.code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET:
                    raise StreamError(f"{rows} are no longer kept by the topic: start a new run")
                if error and error.code() != confluent_kafka.KafkaError._PARTITION_EOF:
                    raise SourceError(f"{rows} cannot be read: {topics.reason(error, source, consumer)}")
                offset = message.offset()
                assert offset is not None  # messages and ends of partitions have one
                if not error and offset < stop:
                    messages.append(_row(message))
                    deadline = time.monotonic() + topics.TIMEOUT
                if error or offset >= stop - 1:
                    return messages
            if time.monotonic() > deadline:
                cause = f"{topic.brokers} sent nothing for {topics.TIMEOUT:.0f} s"
                silence = confluent_kafka.KafkaError(confluent_kafka.KafkaError._TIMED_OUT, cause)
                raise SourceError(f"{rows} cannot be read: {topics.reason(silence, source, consumer)}")
    except confluent_kafka.KafkaException as error:
        raise SourceError(f"{rows} cannot be read: {topics.reason(error, source, consumer)}") from error
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
    consumer: Consumer = topics.client("Consumer", source, "source", {**topics.READER, **_SETTINGS})
    return consumer
