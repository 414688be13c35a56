"""The address of a topic of Kafka: ``kafka://BROKER:PORT,BROKER:PORT/TOPIC?PROPERTY=VALUE``.

Properties are those of librdkafka, such as ``security.protocol=SASL_SSL``; a value ``$NAME`` is that of a variable of
the environment, so that no password has to be in a spec.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from spotmpi.streams.errors import SourceError, StreamError

SCHEME = "kafka://"
TIMEOUT = 30.0  # seconds for an answer of a broker
# Of every client that reads.
READER = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
}


class Topic(NamedTuple):
    """What an address names: the brokers, the topic, and properties of the client."""

    brokers: str
    name: str
    properties: dict[str, str]

    def __str__(self) -> str:
        return f"{self.name} of {self.brokers}"


def is_topic(address: str) -> bool:
    """Whether an address is that of a topic of Kafka."""
    return address.startswith(SCHEME)


def shown(address: str) -> str:
    """An address without the properties, which may be secret."""
    return address.partition("?")[0]


def problem(address: str) -> str | None:
    """What is wrong with an address; None where it names a topic."""
    parts = urlsplit(address)
    name = unquote(parts.path.strip("/"))
    if parts.netloc and name and "/" not in name:
        return None
    return "names no topic: write kafka://BROKER:9092/TOPIC"


def parse(address: str, use: str = "source") -> Topic:
    """The topic that an address names; StreamError where it names none, with *use* as what it is for."""
    wrong = problem(address)
    if wrong:
        raise StreamError(f"the {use} {shown(address)} {wrong}")
    parts = urlsplit(address)
    properties = {}
    for key, value in parse_qsl(parts.query, keep_blank_values=True):
        variable = value.removeprefix("$")
        if value.startswith("$") and variable not in os.environ:
            remedy = "give it to the run by `env_passthrough`, `env` or `kubernetes.secret_env`"
            raise StreamError(f"the {use} {shown(address)} needs the variable {variable}: {remedy}")
        properties[key] = os.environ[variable] if value.startswith("$") else value
    return Topic(parts.netloc, unquote(parts.path.strip("/")), properties)


def client(kind: str, address: str, use: str, settings: Mapping[str, Any]) -> Any:
    """A ``Consumer`` or ``Producer`` of confluent-kafka for an address, with further *settings*.

    Raises:
        StreamError: there is no confluent-kafka, or it refuses a property.
    """
    try:
        import confluent_kafka
    except ModuleNotFoundError:
        remedy = "install spotmpi[kafka], or add confluent-kafka to the image"
        raise StreamError(f"the {use} {shown(address)} needs confluent-kafka: {remedy}") from None
    own = parse(address, use)
    try:
        return getattr(confluent_kafka, kind)({"bootstrap.servers": own.brokers, **settings, **own.properties})
    except (confluent_kafka.KafkaException, ValueError) as error:
        raise StreamError(f"the {use} {shown(address)}: {text(error)}") from error


def partitions(address: str, use: str, consumer: Any) -> list[int]:
    """The numbers of the partitions of a topic.

    Raises:
        StreamError: there is no such topic.
        SourceError: no broker answers.
    """
    import confluent_kafka

    own = parse(address, use)
    try:
        metadata = consumer.list_topics(own.name, timeout=TIMEOUT).topics[own.name]
    except confluent_kafka.KafkaException as error:
        raise SourceError(f"the topic {own} cannot be listed: {text(error)}") from error
    if metadata.error is not None or not metadata.partitions:
        cause = metadata.error or "no partition"
        raise StreamError(f"the brokers {own.brokers} have no topic {own.name}: {cause}; create it")
    return sorted(metadata.partitions)


def text(error: Exception) -> str:
    """What an error of the client says."""
    first = error.args[0] if error.args else error
    return str(first.str()) if hasattr(first, "str") else str(error)
