"""Streams from a real Kafka broker and a real HDFS."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotmpi.streams import kafka, sources, storage
from spotmpi.streams.errors import SourceError, StreamError
from spotmpi.streams.order import Order, Settings
from tests.contract.conftest import local_harness
from tests.testbed.java_servers import hdfs, java_installed, kafka_broker
from tests.testbed.web import free_port
from tests.unit.streams.data import order_of, read, read_all, samples, write_tar

# Ends after two batches, once more messages have come; the next attempt continues.
INTERRUPTED = """
import os
from pathlib import Path
import spotmpi
from confluent_kafka import Producer

position = Path(os.environ["SPOTMPI_CHECKPOINT_PATH"], "position")
stream = spotmpi.stream(start=int(position.read_text()) if position.exists() else 0)
for batch in stream:
    print("batch", batch, flush=True)
    if stream.count == 2 and not position.exists():
        producer = Producer({{"bootstrap.servers": "{broker}"}})
        for number in range(100, 130):
            producer.produce("logged", value=b"%d" % number, partition=number % 3)
        producer.flush()
        position.parent.mkdir(parents=True, exist_ok=True)
        position.write_text(str(stream.position))
        raise SystemExit(1)
"""

pytestmark = [
    pytest.mark.nightly("servers of Java start for 10 s; by day a web server and the pure parts are tested"),
    pytest.mark.skipif(not java_installed(), reason="needs Java and Maven: scripts/java-packages"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker whose topics have three partitions."""
    with kafka_broker(tmp_path_factory.mktemp("kafka") / "broker") as address:
        yield address


@pytest.fixture(autouse=True)
def new_clients() -> Iterator[None]:
    """No test has the client of another."""
    yield
    kafka._consumer.cache_clear()


def produce(broker: str, topic: str, numbers: range, transaction: str | None = None) -> None:
    """Write a message for each number, to partition number % 3."""
    from confluent_kafka import Producer

    values: dict[str, Any] = {"bootstrap.servers": broker}
    producer = Producer({**values, "transactional.id": transaction} if transaction else values)
    if transaction:
        producer.init_transactions()
        producer.begin_transaction()
    for number in numbers:
        producer.produce(topic, key=b"%d" % (number % 7), value=b"%d" % number, partition=number % 3)
    producer.flush()
    if transaction:
        producer.commit_transaction()


def create(broker: str, topic: str, **config: str) -> None:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    options = {name.replace("_", "."): value for name, value in config.items()}
    client = AdminClient({"bootstrap.servers": broker})
    client.create_topics([NewTopic(topic, 3, 1, config=options)])[topic].result()


def values(rows: list[dict[str, Any]]) -> list[int]:
    return [int(row["value"]) for row in rows]


def test_partitions_are_read_by_offset_in_any_order_and_again(broker: str) -> None:
    create(broker, "numbers")
    produce(broker, "numbers", range(100))
    order = order_of(f"kafka://{broker}/numbers", 10, shuffle_batches=True, last_batch="keep")
    parts = sources.parts_of(order.settings)
    assert [(part.name, part.rows) for part in parts] == [("numbers/0", 34), ("numbers/1", 33), ("numbers/2", 33)]
    batches = read_all(order)
    assert sorted(value for rows in batches for value in values(rows)) == list(range(100))
    assert values(read(order, 4)) == values(batches[4])
    assert {(row["partition"], row["key"]) for row in batches[0]} == {
        (int(row["value"]) % 3, b"%d" % (int(row["value"]) % 7)) for row in batches[0]
    }
    assert all(abs(row["timestamp"] / 1000 - time.time()) < 600 for row in batches[0])


def test_a_resume_reads_the_recorded_offsets_of_a_topic_that_grew(broker: str) -> None:
    create(broker, "growing")
    produce(broker, "growing", range(30))
    settings = Settings(f"kafka://{broker}/growing", 30)
    record = sources.parts_of(settings)
    produce(broker, "growing", range(30, 60))
    assert sources.parts_of(settings, record) == record
    assert sum(part.rows for part in sources.parts_of(settings)) == 60
    assert sorted(values(read(Order(record, settings), 0))) == list(range(30))


def test_a_second_attempt_of_a_run_reads_the_messages_of_the_first(broker: str, tmp_path: Path) -> None:
    create(broker, "logged")
    produce(broker, "logged", range(60))
    (tmp_path / "flow.py").write_text("def prepare(rows, seed):\n    return [int(row['value']) for row in rows]\n")
    (tmp_path / "train.py").write_text(INTERRUPTED.format(broker=broker))
    values = {
        "command": [sys.executable, "train.py"],
        "launcher": "none",
        "files": [str(tmp_path / name) for name in ("flow.py", "train.py")],
        "limits": {"failures": 1},
        "stream": {"source": f"kafka://{broker}/logged", "batch": 10, "prepare": "flow:prepare"},
    }
    for local in local_harness(tmp_path / "runs"):
        events = local.all_events(values)
    lines = [str(event.values["text"]) for event in events if event.kind == "line"]
    batches = [json.loads(line.partition(" ")[2]) for line in lines if line.startswith("batch ")]
    assert events[-1].kind == "succeeded"
    assert len(batches) == 6
    assert sorted(number for batch in batches for number in batch) == list(range(60))


def test_offsets_of_transactions_have_no_message(broker: str) -> None:
    create(broker, "paid")
    for start in (0, 9):
        produce(broker, "paid", range(start, start + 9), transaction="payments")
    order = order_of(f"kafka://{broker}/paid", 8, last_batch="keep")
    parts = sources.parts_of(order.settings)
    assert [part.rows for part in parts] == [8, 8, 8]  # 3 messages and the end of a transaction, twice
    assert [values(rows) for rows in read_all(order)] == [
        [number for number in range(18) if number % 3 == partition] for partition in range(3)
    ]


def test_messages_that_were_deleted_are_an_error_in_the_run_and_at_its_resume(broker: str) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    create(broker, "short")
    produce(broker, "short", range(30))
    settings = Settings(f"kafka://{broker}/short", 5)
    record = sources.parts_of(settings)
    order = Order(record, settings)
    client = AdminClient({"bootstrap.servers": broker})
    for deletion in client.delete_records([TopicPartition("short", 0, 8)]).values():
        deletion.result()

    with pytest.raises(StreamError, match="short/0 rows 0 to 4 are no longer kept by the topic"):
        read(order, 0)
    with pytest.raises(StreamError, match=r"short/0 no longer has the offsets 0 to 10 .* those from 8 to 10"):
        sources.parts_of(settings, record)
    assert values(read(order, 2)) == [1, 4, 7, 10, 13]


def test_a_topic_or_a_broker_that_does_not_exist_is_named(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StreamError, match="have no topic absent"):
        sources.parts_of(Settings(f"kafka://{broker}/absent?allow.auto.create.topics=false", 1))
    monkeypatch.setattr(kafka, "_TIMEOUT", 2.0)
    with pytest.raises(SourceError, match=r"the topic t of 127\.0\.0\.1:\d+ cannot be listed"):
        sources.parts_of(Settings(f"kafka://127.0.0.1:{free_port()}/t", 1))
    with pytest.raises(StreamError, match='No such configuration property: "colour"'):
        sources.parts_of(Settings(f"kafka://{broker}/t?colour=red", 1))


def test_files_of_hdfs_are_read_and_one_that_changes_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    monkeypatch.setattr(storage, "PAUSES", (0.0,))
    write_tar(tmp_path / "a.tar", samples("a", range(20)))
    with hdfs(tmp_path / "hdfs") as address:
        host, _, port = address.partition(":")
        system = fsspec.filesystem("webhdfs", host=host, port=port, user="root")
        for name, content in {"1.csv": b"x\n1\n2\n", "2.csv": b"x\n3\n4\n"}.items():
            system.pipe_file(f"/set/{name}", content)
        system.pipe_file("/tars/a.tar", (tmp_path / "a.tar").read_bytes())

        order = order_of(f"webhdfs://root@{address}/set", 2)
        assert [batch["x"].tolist() for batch in read_all(order)] == [[1, 2], [3, 4]]
        rows = read(order_of(f"webhdfs://root@{address}/tars/*.tar", 2), 7)
        assert [row["cls"] for row in rows] == [b"14", b"15"]

        system.pipe_file("/set/1.csv", b"x\n5\n6\n")
        with pytest.raises(StreamError, match=r"set/1\.csv was changed while the stream reads it"):
            read(order, 0)
        system.rm_file("/set/2.csv")
        with pytest.raises(StreamError, match=r"set/2\.csv was removed while the stream reads it"):
            read(order, 1)
