"""Unpacks the agent's code in a pod and runs it. Run by path, with `unpack` beside it, by the image's Python."""

import importlib
import os
import signal
import sys
import tarfile
from typing import Optional

CONFIG = "/spotmpi/config"
CODE = "/spotmpi/work/code"
DOMAIN = "cluster.local"  # of clusters, unless their kubelets name another one
RESOLVER = "/etc/resolv.conf"
ENV_IMAGE_PATH = "SPOTMPI_IMAGE_PYTHONPATH"  # the PYTHONPATH that the image sets, kept from the agent for the program


def search_list(text: str) -> Optional[str]:
    """The DNS search list of a pod whose cluster has another domain than cluster.local; None where it fits.

    *text* is /etc/resolv.conf: the kubelet's list, with the domain of the cluster, and then that of the run's pods,
    which spotmpi adds without knowing it.
    """
    lists = [line.split()[1:] for line in text.splitlines() if line.split()[:1] == ["search"]]
    searches = lists[-1] if lists else []
    own = next((each for each in reversed(searches) if each.endswith(".svc." + DOMAIN) and each.count(".") > 3), None)
    if own is None:
        return None
    service = own.split(".", 1)[1][: -len(DOMAIN)]  # namespace.svc.
    domain = next((each[len(service) :] for each in searches if each.startswith(service)), DOMAIN)
    replaced = [own[: -len(DOMAIN)] + domain if each == own else each for each in searches]
    return None if domain == DOMAIN else " ".join(replaced)


def main() -> None:
    """Unpack every code archive of the ConfigMap, oldest name first, and exec the agent, or the module in argv."""
    # The kernel drops what the first process of a pod has no handler for, unless it is blocked (pid_namespaces(7)). A
    # pod that is deleted now would only be killed at the end of its grace, and count as failed.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # which -I leaves out
    unpack = importlib.import_module("unpack").unpack
    sys.path.pop(0)
    os.makedirs(CODE, exist_ok=True)
    for name in sorted(os.listdir(CONFIG)):
        if name.endswith(".tar.gz"):
            with tarfile.open(os.path.join(CONFIG, name), "r:gz") as packed:
                unpack(packed, CODE)
    with open(RESOLVER, encoding="utf-8") as file:
        searches = search_list(file.read())
    if searches:  # in place of the list of the file, for all processes from now on: resolv.conf(5), of glibc
        os.environ["LOCALDOMAIN"] = searches
    os.environ[ENV_IMAGE_PATH] = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = CODE
    os.chdir(CODE)
    os.execv(sys.executable, [sys.executable, "-u", "-m", *(sys.argv[1:] or ["spotmpi.agent"])])


if __name__ == "__main__":
    main()
