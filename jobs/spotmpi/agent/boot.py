"""Unpacks the agent's code in a pod and runs it. Run by path, alone, by the image's Python."""

import io
import os
import sys
import tarfile

CONFIG = "/spotmpi/config"
CODE = "/spotmpi/work/code"
ENV_IMAGE_PATH = "SPOTMPI_IMAGE_PYTHONPATH"  # the PYTHONPATH that the image sets, kept from the agent for the program


def main() -> None:
    """Unpack every code archive of the ConfigMap, oldest name first, and exec the agent."""
    os.makedirs(CODE, exist_ok=True)
    for name in sorted(os.listdir(CONFIG)):
        if name.endswith(".tar.gz"):
            with open(os.path.join(CONFIG, name), "rb") as file:
                data = file.read()
            with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
                archive.extractall(CODE)
    os.environ[ENV_IMAGE_PATH] = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = CODE
    os.chdir(CODE)
    os.execv(sys.executable, [sys.executable, "-u", "-m", "spotmpi.agent"])


if __name__ == "__main__":
    main()
