"""Test clusters by hand: start, stop, status and env."""

from __future__ import annotations

import argparse
import json
import shlex
import sys

from tests.testbed import leftovers
from tests.testbed.cluster import NODES, Cluster, start_cluster, stop_cluster
from tests.testbed.errors import TestbedError
from tests.testbed.kubernetes import Kubernetes
from tests.testbed.slot import Slot, every_slot


def start(options: argparse.Namespace) -> None:
    """Start a cluster that goes on after this command, and tell how to use it."""
    cluster = start_cluster(set(options.image), options.nodes, outlives_us=True)
    for node in cluster.nodes if options.gpus else []:
        node.set_gpus(options.gpus)
    _note(cluster)
    number = cluster.slot.index
    print(f'cluster {number} runs; use it with: eval "$(scripts/cluster env {number})"', file=sys.stderr)
    print(f"end it with: scripts/cluster stop {number}", file=sys.stderr)
    env(argparse.Namespace(number=number))


def stop(options: argparse.Namespace) -> None:
    """End one cluster, or all, with every trace of them."""
    for slot in every_slot() if options.all else [Slot(options.number)]:
        stop_cluster(slot)


def status(options: argparse.Namespace) -> None:
    """Print the state of every cluster on this machine; exit 1 if one ended without cleaning up."""
    dead = False
    for slot in every_slot():
        traces = leftovers.find(slot)
        if not traces:
            continue
        runs = slot.is_taken()
        dead = dead or not runs
        print(f"cluster {slot.index} {'runs' if runs else 'ended without cleaning up; run scripts/cluster stop'}")
        print(_nodes(slot) if runs else "\n".join(f"  {trace}" for trace in traces))
    if dead:
        raise SystemExit(1)


def env(options: argparse.Namespace) -> None:
    """Print shell lines that put the cluster's kubeconfig, kubectl and image names into the environment."""
    note = Slot(options.number).folder / "note.json"
    if not note.exists():
        raise TestbedError(
            f"no cluster {options.number} was started by hand; scripts/cluster status lists those that run"
        )
    for name, value in json.loads(note.read_text()).items():
        print(f"export {name}={shlex.quote(value)}")
    print('export PATH="$SPOTMPI_TESTBED_BIN:$PATH"')


def _note(cluster: Cluster) -> None:
    """Keep what `env` prints."""
    lines = {"KUBECONFIG": str(cluster.kubeconfig)}
    lines["SPOTMPI_TESTBED_BIN"] = cluster.environment["PATH"].partition(":")[0]
    lines |= {f"IMAGE_{name.upper().replace('-', '_')}": reference for name, reference in cluster.images.items()}
    (cluster.slot.folder / "note.json").write_text(json.dumps(lines, indent=2))


def _nodes(slot: Slot) -> str:
    result = Kubernetes(slot.folder / "admin.kubeconfig").try_kubectl("get", "nodes", "-o", "wide")
    return result.stdout.rstrip() or result.stderr.rstrip()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cluster", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    starting = verbs.add_parser("start", help=start.__doc__)
    starting.add_argument("--nodes", type=int, default=NODES, choices=(1, 2), help="how many (default: %(default)s)")
    starting.add_argument("--gpus", type=int, default=0, help="GPUs that each node seems to have (default: none)")
    starting.add_argument(
        "--image", action="append", default=[], help="an image folder to put on the nodes; repeatable"
    )
    starting.set_defaults(verb=start)
    stopping = verbs.add_parser("stop", help=stop.__doc__)
    stopping.add_argument("number", type=int, nargs="?", default=0)
    stopping.add_argument("--all", action="store_true")
    stopping.set_defaults(verb=stop)
    verbs.add_parser("status", help=status.__doc__).set_defaults(verb=status)
    telling = verbs.add_parser("env", help=env.__doc__)
    telling.add_argument("number", type=int, nargs="?", default=0)
    telling.set_defaults(verb=env)
    return parser


def main() -> int:
    """Run the command line; return its exit code."""
    options = _parser().parse_args()
    try:
        options.verb(options)
    except TestbedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
