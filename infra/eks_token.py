"""Prints a token for an EKS cluster as credential plugins of kubectl do: `python eks_token.py REGION CLUSTER`.

The program is a text in the provider's kubeconfig (`infra/login.py`), so it imports nothing of ours.
"""

import base64
import json
import sys
from datetime import UTC, datetime, timedelta

import boto3
from botocore.model import ServiceId
from botocore.signers import RequestSigner

# As `aws eks get-token`: signed for a minute, and accepted for 15 from its date.
_SIGNED_FOR = 60
_LIFETIME = timedelta(minutes=14)
_SUFFIXES = {"aws-cn": "amazonaws.com.cn", "aws-eusc": "amazonaws.eu"}  # of hosts, by partition


def credential(region: str, cluster: str) -> dict[str, object]:
    """The token in the form that kubectl reads."""
    session = boto3.Session(region_name=region)
    signer = RequestSigner(ServiceId("STS"), region, "sts", "v4", session.get_credentials(), session.events)
    host = f"sts.{region}.{_SUFFIXES.get(session.get_partition_for_region(region), 'amazonaws.com')}"
    url = f"https://{host}/?Action=GetCallerIdentity&Version=2011-06-15"
    request = {"method": "GET", "url": url, "body": {}, "headers": {"x-k8s-aws-id": cluster}, "context": {}}
    signed = signer.generate_presigned_url(request, region_name=region, expires_in=_SIGNED_FOR, operation_name="")
    token = "k8s-aws-v1." + base64.urlsafe_b64encode(signed.encode()).decode().rstrip("=")
    until = f"{datetime.now(UTC) + _LIFETIME:%Y-%m-%dT%H:%M:%SZ}"
    status = {"token": token, "expirationTimestamp": until}
    return {"apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential", "status": status}


if __name__ == "__main__":
    print(json.dumps(credential(*sys.argv[1:3])))
