"""Topics of Kafka as sources, as far as no broker is needed."""

from __future__ import annotations

import sys

import pytest

from spotmpi.streams import kafka, topics
from spotmpi.streams.errors import StreamError


def test_a_source_names_brokers_topic_and_properties_of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "p&ss")
    assert topics.parse("kafka://a:9092,b:9093/my.topic?sasl.mechanism=PLAIN&sasl.password=$KAFKA_PASSWORD") == (
        "a:9092,b:9093",
        "my.topic",
        {"sasl.mechanism": "PLAIN", "sasl.password": "p&ss"},
    )


@pytest.mark.parametrize("source", ["kafka://a:9092", "kafka:///topic", "kafka://a/b/c"])
def test_a_source_without_a_topic_is_refused(source: str) -> None:
    with pytest.raises(StreamError, match="names no topic: write kafka://BROKER:9092/TOPIC"):
        topics.parse(source)


def test_a_variable_that_is_not_set_is_named_without_the_properties() -> None:
    with pytest.raises(StreamError, match=r"^the source kafka://a/t needs the variable ABSENT_PASSWORD: give it"):
        topics.parse("kafka://a/t?sasl.password=$ABSENT_PASSWORD")


def test_a_part_records_its_offsets() -> None:
    part = kafka.part_of("t", 3, 17, 40)
    assert (part.name, part.rows, kafka.offsets(part)) == ("t/3", 23, (17, 40))


@pytest.mark.parametrize("kept", [(17, 40), (0, 40), (17, 99)])
def test_a_resume_reads_the_offsets_of_the_record_though_the_topic_grew(kept: tuple[int, int]) -> None:
    kafka.check_retention(kafka.part_of("t", 3, 17, 40), {3: kept})


@pytest.mark.parametrize("ranges", [{3: (18, 40)}, {3: (17, 39)}, {2: (17, 40)}])
def test_messages_that_are_no_longer_kept_are_an_error(ranges: dict[int, tuple[int, int]]) -> None:
    with pytest.raises(StreamError, match="t/3 no longer has the offsets 17 to 40 with which the run began"):
        kafka.check_retention(kafka.part_of("t", 3, 17, 40), ranges)
    kafka.check_retention(kafka.part_of("t", 3, 5, 5), ranges)  # it had none


def test_without_the_client_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(StreamError, match=r"kafka://a/t needs confluent-kafka: install spotmpi\[kafka\]"):
        kafka.partitions("kafka://a/t?x=y")
