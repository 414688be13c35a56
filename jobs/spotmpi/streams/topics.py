"""The address of a topic of Kafka: ``kafka://BROKER:PORT,BROKER:PORT/TOPIC?PROPERTY=VALUE``.

Properties are those of librdkafka, such as ``security.protocol=SASL_SSL``; a value ``$NAME`` is that of a variable of
the environment, so that no password has to be in a spec.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from spotmpi.streams.errors import SourceError, StreamError

SCHEME = "kafka://"
_MAX_PORT = 65535
TIMEOUT = 30.0  # seconds for an answer of a broker
_PATIENCE = 3.0  # seconds for the first answer, after which the user is told what is waited for, and why
_UNREACHED = 10.0  # seconds after which a run that begins gives brokers up where each try to reach one has failed
# Of every client that reads.
READER = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
}
# What helps, by the names of errors of the client.
_LOGIN = "check security.protocol, sasl.mechanism, sasl.username and sasl.password"
_REACH = "check host, port and security.protocol, and that a firewall lets this machine connect"
_RIGHTS = "let the user of the client"
_REMEDIES = {
    "_RESOLVE": "check the name; one that is not in the address is in advertised.listeners of the brokers",
    "_AUTHENTICATION": _LOGIN,
    "SASL_AUTHENTICATION_FAILED": _LOGIN,
    "_SSL": "check security.protocol, the port and ssl.ca.location",
    "_BAD_MSG": "something else than Kafka, or Kafka with TLS, answers there: check the port and security.protocol",
    "_TRANSPORT": _REACH,
    "_TIMED_OUT": _REACH,
    "_INVALID_ARG": "correct the property, which is one of librdkafka",
    "COORDINATOR_NOT_AVAILABLE": "transactions need as many brokers as transaction.state.log.replication.factor says",
    "INVALID_TRANSACTION_TIMEOUT": "set transaction.timeout.ms to at most transaction.max.timeout.ms of the brokers",
    "MSG_SIZE_TOO_LARGE": "write less with a row, or raise message.max.bytes and the topic's max.message.bytes",
    "TOPIC_AUTHORIZATION_FAILED": f"{_RIGHTS} describe the topic, and read or write it",
    "GROUP_AUTHORIZATION_FAILED": f"{_RIGHTS} read the groups spotmpi-*, and spotmpi-stream of a source",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": f"{_RIGHTS} describe and write the transactional IDs spotmpi-*",
}
_UNREACHED_ALL = "_ALL_BROKERS_DOWN"
_GENERAL = ("_TRANSPORT", "_TIMED_OUT", _UNREACHED_ALL, "REQUEST_TIMED_OUT")  # errors that have a cause
_said: dict[str, dict[str, str]] = {}  # what clients of an address have said since, by the name of the error


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
    """An address without the properties, which may be secret, and without a login."""
    return re.sub(r"(?<=//)[^/]*@", "", address.partition("?")[0])


def problem(address: str) -> str | None:
    """What is wrong with an address; None where it names a topic."""
    parts = urlsplit(address)
    name = unquote(parts.path.strip("/"))
    if "@" in parts.netloc:
        return "has a login in front of the brokers: write ?sasl.username=NAME&sasl.password=$VARIABLE after the topic"
    ports = re.findall(r":(\d+)(?:,|$)", parts.netloc)
    if any(int(port) > _MAX_PORT for port in ports):
        return f"has a port above {_MAX_PORT}: correct it"
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
    own, said = parse(address, use), _said.setdefault(address, {})
    # In place of stderr, to which the client writes each of its twenty tries a second.
    logger = logging.getLogger("spotmpi.kafka")
    logger.propagate = False
    logger.handlers = [logging.NullHandler()]
    quiet = {"log_level": 2, "logger": logger, "error_cb": lambda error: said.update({error.name(): error.str()})}
    try:
        return getattr(confluent_kafka, kind)({"bootstrap.servers": own.brokers, **quiet, **settings, **own.properties})
    except (confluent_kafka.KafkaException, ValueError) as error:
        raise StreamError(f"the {use} {shown(address)}: {reason(error)}") from error


def partitions(address: str, use: str, consumer: Any, begins: bool = False) -> list[int]:
    """The numbers of the partitions of a topic; *begins* says that the run has not used it before.

    Raises:
        StreamError: there is no such topic.
        SourceError: no broker answers.
    """
    from confluent_kafka import KafkaError

    own = parse(address, use)
    metadata = _listed(own, address, consumer, begins).topics[own.name]
    answer = metadata.error
    if answer is not None and answer.code() not in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
        kind = SourceError if answer.retriable() else StreamError
        raise kind(f"the topic {own} cannot be listed: {reason(answer)}")
    if answer is not None or not metadata.partitions:
        cause = reason(answer) if answer else "no partition"
        raise StreamError(f"the brokers {own.brokers} have no topic {own.name}: {cause}; create it")
    return sorted(metadata.partitions)


def _listed(own: Topic, address: str, consumer: Any, begins: bool) -> Any:
    """What the brokers say of a topic; whoever waits for them hears soon what each try to reach them has met.

    Raises:
        SourceError: no broker answers.
    """
    import confluent_kafka

    waited, seconds = 0.0, min(_PATIENCE, TIMEOUT)
    while True:
        try:
            return consumer.list_topics(own.name, timeout=seconds)
        except confluent_kafka.KafkaException as error:
            heard = {**_heard(address, consumer)}
            cause = reason(error, address, consumer)
            waited += seconds
            seconds = min(TIMEOUT, _UNREACHED if begins and _UNREACHED_ALL in heard else TIMEOUT) - waited
            if error.args[0].name() not in _GENERAL or seconds <= 0:
                raise SourceError(f"the topic {own} cannot be listed: {cause}") from error
            if waited <= _PATIENCE:
                print(f"waiting for the topic {own}: {cause}", file=sys.stderr, flush=True)
            _said.get(address, {}).update(heard)  # the client does not repeat it


def reason(error: Any, address: str = "", client: Any = None) -> str:
    """Why the brokers of an address did not do something, and what helps.

    *error* is one of the client or an exception with one. Where it only says that no broker answers, the *client* knows
    what each try met.
    """
    first = error.args[0] if isinstance(error, Exception) and error.args else error
    if not hasattr(first, "str"):
        return str(error)
    name, cause = first.name(), first.str() or str(first)
    if name in _GENERAL and client is not None:
        said = _heard(address, client)
        name = next((each for each in _REMEDIES if each in said), name)
        cause = said.get(name, cause)
        said.clear()
    remedy = _REMEDIES.get(name, "")
    if name == "_TRANSPORT" and "refused" in cause:
        remedy = "no broker listens there: check host and port, and whether it runs"
    cause = re.sub(r" \(after \d+ms in state \w+(, \d+ identical error\(s\) suppressed)?\)", "", cause).rstrip(".")
    return f"{cause}; {remedy}" if remedy else cause


def _heard(address: str, client: Any) -> dict[str, str]:
    """What clients of an address have said since it was last named as a reason."""
    with contextlib.suppress(Exception):  # an error again, or a double
        client.poll(0)  # which tells what it has met
    return _said.get(address, {})
