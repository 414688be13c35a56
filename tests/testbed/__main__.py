"""Test clusters by hand: start, stop, status and env."""

from __future__ import annotations

import argparse
import shlex
import sys

from tests.testbed import leftovers
from tests.testbed.cluster import NODES, start_cluster, stop_cluster
from tests.testbed.errors import TestbedError
from tests.testbed.kubernetes import Kubernetes
from tests.testbed.slot import Slot, every_slot

_EXPORTS = "environment.sh"  # what `env` prints


def start(options: argparse.Namespace) -> None:
    """Start a cluster that keeps running after this command, and print how to use it."""
    cluster = start_cluster(set(options.image), options.nodes, outlives_us=True)
    for node in cluster.nodes if options.gpus else []:
        node.set_gpus(options.gpus)
    variables = {"KUBECONFIG": str(cluster.kubeconfig)}
    variables["SPOTMPI_TESTBED_BIN"] = cluster.environment["PATH"].partition(":")[0]
    variables |= {f"IMAGE_{name.upper().replace('-', '_')}": reference for name, reference in cluster.images.items()}
    exports = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    (cluster.slot.folder / _EXPORTS).write_text("\n".join([*exports, 'export PATH="$SPOTMPI_TESTBED_BIN:$PATH"', ""]))
    number = cluster.slot.index
    print(f'cluster {number} runs; use it with: eval "$(scripts/cluster env {number})"', file=sys.stderr)
    print(f"end it with: scripts/cluster stop {number}", file=sys.stderr)
    env(argparse.Namespace(number=number))


def stop(options: argparse.Namespace) -> None:
    """Stop one cluster, or all, and remove all traces of them."""
    for slot in every_slot() if options.all else [Slot(options.number)]:
        stop_cluster(slot)


def status(options: argparse.Namespace) -> None:
    """Print the state of every cluster on this machine; exit 1 if one ended without cleaning up."""
    slots = {slot: traces for slot in every_slot() if (traces := leftovers.find(slot))}
    dead = [slot for slot in slots if not slot.is_taken()]
    for slot, traces in slots.items():
        if slot in dead:
            print(f"cluster {slot.index} ended without cleaning up; run scripts/cluster stop")
            print("\n".join(f"  {trace}" for trace in traces))
        else:
            nodes = Kubernetes(slot.folder / "admin.kubeconfig").try_kubectl("get", "nodes", "-o", "wide")
            print(f"cluster {slot.index} runs\n{nodes.stdout.rstrip() or nodes.stderr.rstrip()}")
    if dead:
        raise SystemExit(1)


def env(options: argparse.Namespace) -> None:
    """Print shell lines that put the cluster's kubeconfig, kubectl and image names into the environment."""
    exports = Slot(options.number).folder / _EXPORTS
    if not exports.exists():
        raise TestbedError(
            f"no cluster {options.number} was started by hand; scripts/cluster status lists those that run"
        )
    print(exports.read_text(), end="")


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
