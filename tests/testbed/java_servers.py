"""A real Kafka broker and a real HDFS on this machine, from the versions in ``tests/testbed/java/pom.xml``."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import socket
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from spotmpi.core import names

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
    subprocess.run(["mvn", "-q", "-B", "-f", str(POM), f"-P{profile}", *goal], check=True)
    return path.read_text()


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def kafka_broker(folder: Path, **settings: str) -> Iterator[str]:
    """The address of a broker that is its own controller (KRaft), with its data in *folder*."""
    folder.mkdir(parents=True)
    broker, controller = free_port(), free_port()
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
    config = ["-c", str(folder / "server.properties")]
    form = ["kafka.tools.StorageTool", "format", "-t", _cluster_id(), *config]
    _run([*java, *form], environment)
    with _process([*java, "kafka.Kafka", config[1]], environment, folder / "kafka.log", lambda: _listens(broker)):
        yield f"127.0.0.1:{broker}"


def _cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


@contextlib.contextmanager
def hdfs(folder: Path) -> Iterator[str]:
    """The address of a name node's web interface (WebHDFS), with one data node and its data in *folder*."""
    folder.mkdir(parents=True)
    ports = {name: free_port() for name in ("rpc", "web", "data", "data_web", "data_ipc")}
    values = {
        "fs.defaultFS": f"hdfs://127.0.0.1:{ports['rpc']}",
        "dfs.namenode.http-address": f"127.0.0.1:{ports['web']}",
        "dfs.namenode.name.dir": f"{folder}/name",
        "dfs.datanode.data.dir": f"{folder}/data",
        "dfs.datanode.address": f"127.0.0.1:{ports['data']}",
        "dfs.datanode.http.address": f"127.0.0.1:{ports['data_web']}",
        "dfs.datanode.ipc.address": f"127.0.0.1:{ports['data_ipc']}",
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
    _run([*name_node, "-format", "-nonInteractive"], environment)
    address = f"127.0.0.1:{ports['web']}"
    with (
        _process(name_node, environment, folder / "name.log", lambda: _listens(ports["web"])),
        _process(data_node, environment, folder / "data.log", lambda: _has_data_node(address)),
    ):
        yield address


def _has_data_node(address: str) -> bool:
    """Whether a data node has registered, so that files can be written."""
    url = f"http://{address}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
    with urllib.request.urlopen(url) as answer:
        return b'"NumLiveDataNodes" : 1' in answer.read()


def _run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]


def _listens(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def _process(command: list[str], environment: dict[str, str], log: Path, started: Callable[[], bool]) -> Iterator[None]:
    """A server, once it has started; it is killed at the end."""
    with log.open("wb") as output, subprocess.Popen(command, env=environment, stdout=output, stderr=output) as process:
        try:
            deadline = time.monotonic() + _START
            while not started():
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-2000:]
                time.sleep(0.1)
            yield
        finally:
            process.kill()
