"""How the Kubernetes provider logs in to the cluster: by the AWS credentials and boto3, without the AWS CLI."""

import json
from pathlib import Path
from typing import Any

_TOKEN = Path(__file__).with_name("eks_token.py").read_text(encoding="utf-8")
PYTHON = "SPOTMPI_PYTHON"  # an interpreter with boto3; jobs/spotmpi/environments/pulumi_cli.py sets it, too
# The engine starts providers in the project or in the folder of its program. The text is the same on every machine:
# else each of them would see a change of the provider.
_SCRIPT = f"""for python in "${PYTHON}" .venv/bin/python ../.venv/bin/python python3; do
  "$python" -c 'import boto3' 2>/dev/null && exec "$python" -c "$1" "$2" "$3"
done
echo "no Python with boto3 in {PYTHON}, .venv and PATH: run pulumi in the project, after its scripts/setup" >&2
exit 1
"""


def with_login(kubeconfig: str, region: str, cluster: str) -> str:
    """*kubeconfig*, in which each user logs in by the program of this project; all else is unchanged."""
    values: dict[str, Any] = json.loads(kubeconfig)
    arguments = ["-c", _SCRIPT, "login", _TOKEN, region, cluster]
    login = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "sh", "args": arguments}
    users = [{**each, "user": {"exec": login}} for each in values.get("users", [])]
    return json.dumps({**values, **({"users": users} if users else {})})
