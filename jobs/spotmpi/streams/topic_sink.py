"""A topic of Kafka as the place for the results of a prediction: each batch once, whatever is lost.

A rank is a transactional producer. Each of its transactions has the messages of some batches and, as the offset of a
consumer group of this rank, the numbers of all batches that it has written: the brokers take both or neither, and the
next attempt reads there what is missing. Its rank 0 first fences off all producers of the attempts before.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from spotmpi.agent.files import write_atomically
from spotmpi.streams import topics
from spotmpi.streams.errors import SourceError, StreamError, StreamLost
from spotmpi.streams.sinks import Results
from spotmpi.streams.source_list import Broadcast

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

_USE = "output"
_READY = "topic"  # the text by which rank 0 says what is written already
PAUSES = (0.2, 1.0, 2.0, 5.0)  # seconds before a transaction that had to be aborted is repeated: coordinators move
_TRIES = 5  # of a commit that may be repeated; each waits for an answer
_POLL = 1.0  # seconds
_BATCHES = 64  # of a transaction


class SinkIdentity(NamedTuple):
    """Whose results these are: the run, its attempt from 1 on, and the rank among all."""

    run: str
    attempt: int
    rank: int
    size: int


class TopicSink:
    """The topic at *address*; *record* is a file of the run with the names of all topics to which it has written.

    Raises:
        StreamError: there is no such topic, it refuses this client, or the brokers have forgotten what was written.
        SourceError: the brokers do not answer.
        StreamLost: a newer attempt of the run writes to the topic.
    """

    most = _BATCHES

    def __init__(self, address: str, identity: SinkIdentity, broadcast: Broadcast, record: Path) -> None:
        self._address, self._identity, self._record = address, identity, record
        self._topic = topics.parse(address, _USE)
        self._client = reader = self._reader("")  # the client whose call may fail
        self._partitions = topics.partitions(address, _USE, reader, begins=_recorded(record) == [])
        with self._translated("be written"):
            text = broadcast.receive(_READY) if identity.rank else ""
            self._producer = self._fenced(identity.rank)
            self._require_newest(_committed(reader, self._topic.name))
            if identity.rank == 0:
                text = self._begin(reader)
                broadcast.publish(_READY, text)
            self._group = self._reader(f"-{identity.rank}")
            self._progress = _progress(_committed(self._group, self._topic.name))
        self._client = self._producer
        self._done = frozenset(numbers_of(json.loads(text)))

    def missing(self, numbers: Sequence[int]) -> list[int]:
        """Those of *numbers* that no attempt has written."""
        return [number for number in numbers if number not in self._done]

    def write(self, results: Results) -> None:
        """Write the messages of batches in one transaction; those without a key to a partition by the batch's number.

        Raises:
            StreamError: the topic refuses them.
            SourceError: the brokers do not answer.
            StreamLost: a newer attempt of the run writes to the topic.
        """
        progress = extended(self._progress, [number for number, _ in results])
        with self._translated("take results"):
            self._transaction(self._producer, self._group, {"batches": progress}, results)
        self._progress = progress

    def _begin(self, reader: Any) -> str:
        """As rank 0: fence off all producers of earlier attempts; the batches that these have written."""
        run, attempt, _, size = self._identity
        head = _committed(reader, self._topic.name)
        recorded = _recorded(self._record)
        if not head and (recorded is None or self._topic.name in recorded):
            remedy = "they keep that for offsets.retention.minutes after a run; start a new run"
            raise StreamError(f"the brokers of {self._topic} have forgotten which results of {run} it has: {remedy}")
        ranks = max(size, head.get("ranks", 0))
        self._transaction(self._producer, reader, {"attempt": attempt, "ranks": ranks}, [])
        self._record.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._record, json.dumps(sorted({*(recorded or ()), self._topic.name})) + "\n")
        for rank in range(1, ranks):
            self._fenced(rank)
        groups = (self._reader(f"-{rank}") for rank in range(ranks))
        return json.dumps([each for group in groups for each in _progress(_committed(group, self._topic.name))])

    def _require_newest(self, head: dict[str, Any]) -> None:
        if head.get("attempt", 0) > self._identity.attempt:
            raise StreamLost(f"attempt {head['attempt']} of the run writes to the topic {self._topic}")

    def _reader(self, suffix: str) -> Any:
        """A consumer of one of the run's groups, which reads no message."""
        settings = {**topics.READER, "group.id": f"spotmpi-{self._identity.run}{suffix}"}
        return topics.client("Consumer", self._address, _USE, {**settings, "allow.auto.create.topics": False})

    def _fenced(self, rank: int) -> Any:
        """The only producer of a rank: those of a former one are complete or aborted now, and it has no others."""
        name = f"spotmpi-{self._identity.run}-{rank}"
        self._client = producer = topics.client("Producer", self._address, _USE, {"transactional.id": name})
        producer.init_transactions(topics.TIMEOUT)
        return producer

    def _transaction(self, producer: Any, group: Any, state: dict[str, Any], results: Results) -> None:
        """Commit results together with the *state* that a group keeps from then on."""
        from confluent_kafka import KafkaException

        for pause in (*PAUSES, None):
            try:
                producer.begin_transaction()
                for number, messages in results:
                    for message in messages:
                        self._produce(producer, number, message)
                producer.send_offsets_to_transaction(
                    _offsets(self._topic.name, state), group.consumer_group_metadata(), topics.TIMEOUT
                )
                _commit(producer)
                return
            except KafkaException as error:
                may_repeat = error.args[0].txn_requires_abort()
                if not error.args[0].fatal():
                    with contextlib.suppress(KafkaException):  # else readers would wait for its timeout
                        producer.abort_transaction(topics.TIMEOUT)
                if pause is None or not may_repeat or error.args[0].code() in _permanent():
                    raise
                time.sleep(pause)

    def _produce(self, producer: Any, number: int, message: tuple[bytes | None, bytes | None]) -> None:
        key, value = message
        partition = {} if key is not None else {"partition": self._partitions[number % len(self._partitions)]}
        while True:
            try:
                producer.produce(self._topic.name, value=value, key=key, **partition)
                return
            except BufferError:  # its queue is full
                producer.poll(_POLL)

    @contextlib.contextmanager
    def _translated(self, action: str) -> Any:
        from confluent_kafka import KafkaError, KafkaException

        try:
            yield
        except KafkaException as error:
            cause: KafkaError = error.args[0]
            text = f"the topic {self._topic} cannot {action}: {topics.reason(error, self._address, self._client)}"
            fenced = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)
            if cause.code() in fenced:
                raise StreamLost(f"{text}; a newer attempt of the run does") from error
            if cause.code() in _permanent():
                raise StreamError(text) from error
            raise SourceError(text) from error


def _permanent() -> frozenset[int]:
    """The codes of errors that come again however often a transaction is repeated."""
    from confluent_kafka import KafkaError

    names = (
        "TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED TRANSACTIONAL_ID_AUTHORIZATION_FAILED "
        "CLUSTER_AUTHORIZATION_FAILED UNKNOWN_TOPIC_OR_PART _UNKNOWN_TOPIC MSG_SIZE_TOO_LARGE INVALID_RECORD "
        "OFFSET_METADATA_TOO_LARGE INVALID_CONFIG _INVALID_ARG _UNKNOWN_PARTITION INVALID_TRANSACTION_TIMEOUT"
    )
    return frozenset(getattr(KafkaError, name) for name in names.split())


def _commit(producer: Any) -> None:
    """Commit, again where the brokers do not say whether they have done so."""
    from confluent_kafka import KafkaException

    for tries in range(_TRIES):
        try:
            producer.commit_transaction(topics.TIMEOUT)
            return
        except KafkaException as error:
            if not error.args[0].retriable() or tries == _TRIES - 1:
                raise


def _offsets(topic: str, state: dict[str, Any]) -> list[Any]:
    """What a group commits: an offset with the *state* as its text."""
    from confluent_kafka import TopicPartition

    return [TopicPartition(topic, 0, 0, metadata=json.dumps(state, separators=(",", ":")))]


def _committed(group: Any, topic: str) -> dict[str, Any]:
    """The state of a group; empty before its first transaction."""
    from confluent_kafka import KafkaException, TopicPartition

    (own,) = group.committed([TopicPartition(topic, 0)], topics.TIMEOUT)
    if own.error is not None:
        raise KafkaException(own.error)
    state: dict[str, Any] = json.loads(own.metadata) if own.offset >= 0 else {}
    return state


def _recorded(path: Path) -> list[str] | None:
    """The recorded topics; None for an empty file, which a machine that lost its power may have."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    names: list[str] | None = json.loads(text) if text else None
    return names


def _progress(state: dict[str, Any]) -> list[list[int]]:
    progress: list[list[int]] = state.get("batches", [])
    return progress


def extended(progress: Sequence[Sequence[int]], numbers: Iterable[int]) -> list[list[int]]:
    """*progress* with further numbers, as sequences [first, step, count]: one as long as none is left out."""
    result = [list(each) for each in progress]
    for number in numbers:
        last = result[-1] if result else None
        if last and last[2] == 1 and number > last[0]:
            last[1:] = [number - last[0], 2]
        elif last and number == last[0] + last[1] * last[2]:
            last[2] += 1
        else:
            result.append([number, 1, 1])
    return result


def numbers_of(progress: Iterable[Sequence[int]]) -> list[int]:
    """The numbers of what `extended` gives."""
    return [first + step * at for first, step, count in progress for at in range(count)]
