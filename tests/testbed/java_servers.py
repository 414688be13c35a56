"""A real Kafka broker and a real HDFS on this machine, from the versions in ``tests/testbed/java/pom.xml``."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

from spotmpi.core import names
from tests.testbed.daemon import Daemon
from tests.testbed.errors import run_command
from tests.testbed.web import free_ports, socket_health

POM = Path(__file__).parent / "java" / "pom.xml"
_START = 120.0  # seconds


def java_installed() -> bool:
    """Whether there are Java and Maven; scripts/java-packages installs Debian's."""
    return shutil.which("java") is not None and shutil.which("mvn") is not None


def class_path(profile: str) -> str:
    """The jars of a profile, which Maven brings where the machine lacks them."""
    path = names.cache_folder() / "java" / f"{profile}.classpath"
    path.parent.mkdir(parents=True, exist_ok=True)
    goal = ["dependency:build-classpath", f"-Dmdep.outputFile={path}"]
    run_command(["mvn", "-q", "-B", "-f", POM, f"-P{profile}", *goal])
    return path.read_text()


@contextlib.contextmanager
def kafka_broker(folder: Path, **settings: str) -> Iterator[str]:
    """The address of a broker that is its own controller (KRaft), with its data in *folder*."""
    folder.mkdir(parents=True)
    broker, controller = free_ports(2)
    values = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{broker}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(folder / "data"),
        "num.partitions": "3",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "log.retention.check.interval.ms": "500",
        "log.initial.task.delay.ms": "0",
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    (folder / "server.properties").write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    java, environment = ["java", "-Xmx512m"], {**os.environ, "CLASSPATH": class_path("kafka")}
    config = folder / "server.properties"
    identity = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    run_command([*java, "kafka.tools.StorageTool", "format", "-t", identity, "-c", config], environment)
    server = Daemon("kafka", [*java, "kafka.Kafka", config], folder, environment)
    with server.running(lambda: socket_health(("127.0.0.1", broker)), _START):
        yield f"127.0.0.1:{broker}"


@contextlib.contextmanager
def hdfs(folder: Path) -> Iterator[str]:
    """The address of a name node's web interface (WebHDFS), with one data node and its data in *folder*."""
    folder.mkdir(parents=True)
    rpc, web, data, data_web, data_ipc = free_ports(5)
    values = {
        "fs.defaultFS": f"hdfs://127.0.0.1:{rpc}",
        "dfs.namenode.http-address": f"127.0.0.1:{web}",
        "dfs.namenode.name.dir": f"{folder}/name",
        "dfs.datanode.data.dir": f"{folder}/data",
        "dfs.datanode.address": f"127.0.0.1:{data}",
        "dfs.datanode.http.address": f"127.0.0.1:{data_web}",
        "dfs.datanode.ipc.address": f"127.0.0.1:{data_ipc}",
        "dfs.datanode.hostname": "127.0.0.1",
        "dfs.replication": "1",
        "dfs.permissions.enabled": "false",
        "dfs.namenode.fs-limits.min-block-size": "0",
    }
    properties = "".join(
        f"<property><name>{key}</name><value>{value}</value></property>" for key, value in values.items()
    )
    for name in ("core-site.xml", "hdfs-site.xml"):
        (folder / name).write_text(f"<configuration>{properties}</configuration>")
    for name in ("hdfs", "datanode"):  # pages for people, which the jars lack
        (folder / "webapps" / name).mkdir(parents=True)
    (folder / "log4j.properties").write_text(
        "log4j.rootLogger=WARN, output\n"
        "log4j.appender.output=org.apache.log4j.ConsoleAppender\n"
        "log4j.appender.output.layout=org.apache.log4j.SimpleLayout\n"
    )
    environment = {**os.environ, "CLASSPATH": f"{folder}:{class_path('hdfs')}"}
    name_node, data_node = (
        ["java", "-Xmx512m", "--add-opens=java.base/java.lang=ALL-UNNAMED", f"org.apache.hadoop.hdfs.server.{name}"]
        for name in ("namenode.NameNode", "datanode.DataNode")
    )
    run_command([*name_node, "-format", "-nonInteractive"], environment)
    address = f"127.0.0.1:{web}"
    with (
        Daemon("name-node", name_node, folder, environment).running(lambda: socket_health(("127.0.0.1", web)), _START),
        Daemon("data-node", data_node, folder, environment).running(lambda: _without_data_node(address), _START),
    ):
        yield address


def _without_data_node(address: str) -> str:
    """Return "" once a data node has registered, so that files can be written."""
    url = f"http://{address}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
    with urllib.request.urlopen(url) as answer:
        return "" if b'"NumLiveDataNodes" : 1' in answer.read() else "no data node has registered"
