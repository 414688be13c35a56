"""Services that store: EFS with AWS Backup, S3, ECR, and KMS, which has the keys to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from botocore.auth import S3SigV4QueryAuth

from tests.cloud.account.answers import ACCOUNT, Refusal, Request, Tags, signature_of, tagged


@dataclass
class Efs:
    """File systems with their tags, and the file system of each mount target."""

    file_systems: dict[str, Tags] = field(default_factory=dict)
    mount_targets: dict[str, str] = field(default_factory=dict)
    access_points: set[str] = field(default_factory=set)
    zones: dict[str, str] = field(default_factory=dict)  # of One Zone storage
    states: dict[str, str] = field(default_factory=dict)  # of mount targets and access points that are not available
    vanishing: set[str] = field(default_factory=set)  # file systems that are still listed, but gone when asked for

    def describe_file_systems(self, region: str, request: Request) -> Any:
        systems = [tagged("FileSystemId", *each) for each in self.file_systems.items()]
        for each in systems:
            each |= {"AvailabilityZoneName": zone} if (zone := self.zones.get(each["FileSystemId"])) else {}
        wanted = request.get("FileSystemId")
        if wanted is not None and wanted not in self.file_systems:
            raise Refusal("FileSystemNotFound")
        return {"FileSystems": [each for each in systems if wanted in (None, each["FileSystemId"])]}

    def describe_access_points(self, region: str, request: Request) -> Any:
        wanted = request.get("AccessPointId")
        if wanted is not None and wanted not in self.access_points:
            raise Refusal("AccessPointNotFound")
        points = [each for each in self.access_points if wanted in (None, each)]
        return {"AccessPoints": [{"AccessPointId": each, "LifeCycleState": self._state(each)} for each in points]}

    def delete_access_point(self, region: str, request: Request) -> Any:
        self.access_points.discard(request["AccessPointId"])

    def describe_mount_targets(self, region: str, request: Request) -> Any:
        if request.get("FileSystemId") in self.vanishing:
            raise Refusal("FileSystemNotFound")
        if "FileSystemId" in request:
            targets = [target for target, system in self.mount_targets.items() if system == request["FileSystemId"]]
            return {"MountTargets": [{"MountTargetId": target} for target in targets]}
        if request["MountTargetId"] not in self.mount_targets:
            raise Refusal("MountTargetNotFound")
        id = request["MountTargetId"]
        return {"MountTargets": [{"MountTargetId": id, "LifeCycleState": self._state(id)}]}

    def delete_mount_target(self, region: str, request: Request) -> Any:
        del self.mount_targets[request["MountTargetId"]]

    def _state(self, id: str) -> str:
        return self.states.get(id, "available")


@dataclass
class Backup:
    """Recovery points of AWS Backup: the ARN and the status of each, by the ARN of what it is a backup of.

    They outlive it, until the end of their time (AWS Backup Developer Guide, Deleting backups).
    ListRecoveryPointsByResource has those of all vaults, also of what was deleted.
    """

    points: dict[str, dict[str, str]] = field(default_factory=dict)
    environments: dict[str, str] = field(default_factory=dict)  # of each recovery point

    def back_up(self, file_system: str, environment: str, days: int, region: str = "us-east-1") -> None:
        """Back up a file system on so many days.

        It copies the tags of the file system to the recovery points (AWS Backup Developer Guide, Copy tags onto
        backups), whose ARNs are not those of EFS (its table of resources with full management).
        """
        own = self.points.setdefault(f"arn:aws:elasticfilesystem:{region}:{ACCOUNT}:file-system/{file_system}", {})
        for _ in range(days):
            arn = f"arn:aws:backup:{region}:{ACCOUNT}:recovery-point:{len(self.environments):08}-0EB3-435A-A80B-1"
            own[arn], self.environments[arn] = "COMPLETED", environment

    def list_recovery_points_by_resource(self, region: str, request: Request) -> Any:
        points = self.points.get(request["ResourceArn"], {})
        return {"RecoveryPoints": [{"RecoveryPointArn": arn, "Status": status} for arn, status in points.items()]}


@dataclass
class S3:
    """Buckets with their settings, among them their `region`, and the objects in them.

    HeadBucket has the bucket's region whichever region is asked, and in a refusal, too (Amazon S3 API Reference,
    GetBucketLocation and HeadBucket). It is refused to those who may list a folder only (`folders_only`).
    """

    buckets: dict[str, dict[str, Any]] = field(default_factory=dict)
    objects: dict[str, dict[str, bytes]] = field(default_factory=dict)  # by bucket and key
    folders_only: set[str] = field(default_factory=set)  # buckets with a policy that allows prefixes only

    def head_bucket(self, region: str, request: Request) -> Any:
        where = self._bucket(request)["region"]
        if request["Bucket"] in self.folders_only:
            raise Refusal("403", "Forbidden", headers={"x-amz-bucket-region": where})
        return {"BucketRegion": where}

    def list_objects_v2(self, region: str, request: Request) -> Any:
        """Objects of any region: boto3 follows S3's redirection."""
        self._bucket(request)
        keys = [key for key in self.objects[request["Bucket"]] if key.startswith(request["Prefix"])]
        return {"Contents": [{"Key": key} for key in keys]}

    def fetch(self, url: str) -> bytes:
        """The object at a presigned address; Refusal with S3's error code.

        As S3 treats a bucket of a newer region, or an object that KMS encrypts: version 4, for the region of the
        bucket (Amazon S3 API Reference, Authenticating Requests: Using Query Parameters, and Error Responses). Hosts
        are `BUCKET.s3.REGION.amazonaws.com`, and `s3.REGION.amazonaws.com` for names that have dots.
        """
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query))
        host, _, region = (parts.hostname or "").removesuffix(".amazonaws.com").rpartition(".")
        path = unquote(parts.path[1:])
        bucket, key = (host.removesuffix(".s3"), path) if host != "s3" else (path.split("/")[0], path.partition("/")[2])
        if parts.scheme != "https" or bucket not in self.buckets or ("." in bucket and host != "s3"):
            raise Refusal("no such host", url)  # the certificate names one level of hosts
        own = self.buckets[bucket]["region"]
        if query.get("X-Amz-Algorithm") != "AWS4-HMAC-SHA256":
            raise Refusal("InvalidRequest", "Please use AWS4-HMAC-SHA256.")
        if region != own:
            raise Refusal("PermanentRedirect", own)
        if query["X-Amz-Credential"].split("/")[2] != own:
            raise Refusal("AuthorizationQueryParametersError", f"the region is wrong; expecting '{own}'")
        if query.pop("X-Amz-Signature") != signature_of(url, S3SigV4QueryAuth, "s3", own, query):
            raise Refusal("SignatureDoesNotMatch")
        return self.objects[bucket][key]

    def create_bucket(self, region: str, request: Request) -> Any:
        self.buckets[request["Bucket"]] = {}

    def get_bucket_versioning(self, region: str, request: Request) -> Any:
        return self._bucket(request).get("VersioningConfiguration", {})

    def get_public_access_block(self, region: str, request: Request) -> Any:
        if "PublicAccessBlockConfiguration" not in self._bucket(request):
            raise Refusal("NoSuchPublicAccessBlockConfiguration")
        return self._bucket(request)

    def put_public_access_block(self, region: str, request: Request) -> Any:
        self._bucket(request).update(request)

    put_bucket_encryption = put_bucket_versioning = put_public_access_block

    def _bucket(self, request: Request) -> dict[str, Any]:
        if request["Bucket"] not in self.buckets:
            raise Refusal("NoSuchBucket")
        return self.buckets[request["Bucket"]]


@dataclass
class Ecr:
    """Repositories, and images as repository:tag."""

    repositories: set[str] = field(default_factory=set)
    images: set[str] = field(default_factory=set)

    def describe_repositories(self, region: str, request: Request) -> Any:
        names = request.get("repositoryNames", self.repositories)
        if not self.repositories.issuperset(names):
            raise Refusal("RepositoryNotFoundException")
        return {"repositories": [{"repositoryName": name} for name in names]}

    def describe_images(self, region: str, request: Request) -> Any:
        if f"{request['repositoryName']}:{request['imageIds'][0]['imageTag']}" not in self.images:
            raise Refusal("ImageNotFoundException")
        return {"imageDetails": []}


@dataclass
class Kms:
    """Keys with their states; a deleted key is pending deletion for days."""

    keys: dict[str, str] = field(default_factory=dict)

    def describe_key(self, region: str, request: Request) -> Any:
        if request["KeyId"] not in self.keys:
            raise Refusal("NotFoundException")
        return {"KeyMetadata": {"KeyState": self.keys[request["KeyId"]]}}
