"""The `aws` stand-in."""

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from tests.engine.providers import aws_cluster, aws_network, aws_services, scaling
from tests.engine.providers.cloud import Provider, ResourceRequest
from tests.engine.providers.kinds import Kind
from tests.engine.providers.records import Record, Refusal


@cache
def _kinds() -> Mapping[str, Kind]:
    return dict([*aws_network.kinds(), *aws_cluster.kinds(), *aws_services.kinds()])


class Aws(Provider):
    """AWS in one account and region."""

    package = "aws"

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Refuse an account that the program does not want, as the real provider does before anything is made."""
        region, accounts = settings.get("region"), settings.get("allowedAccountIds")
        allowed = json.loads(accounts) if isinstance(accounts, str) else accounts
        if not region:
            raise Refusal("missing required configuration key 'aws:region'")
        if allowed and self.cloud.account not in allowed:
            raise Refusal(f"AWS account ID not allowed: {self.cloud.account}, not one of {', '.join(allowed)}")
        self.cloud.records.region = region

    def kind(self, token: str, inputs: Mapping[str, Any]) -> Kind | None:
        """How an AWS type behaves."""
        return _kinds().get(token)

    def more_failures(self, inputs: Mapping[str, Any]) -> list[str]:
        """AWS's limits on tags."""
        tags = inputs.get("tags") or {}
        failures = [f"tags: {len(tags)}, and AWS takes 50"] if len(tags) > 50 else []
        for key, value in tags.items():
            # Amazon EKS User Guide, Tag restrictions: in any mix of cases, and in values too.
            reserved = any(text.lower().startswith("aws:") for text in (key, str(value)))
            if reserved or len(key) > 128 or len(str(value)) > 256:
                failures.append(f"tags.{key}: reserved, or longer than 128 (key) or 256 (value) characters")
            if not re.fullmatch(r"[\w\s.:/=+\-@]*", f"{key}{value}"):  # the pattern of IAM's API reference
                failures.append(f"tags.{key}: {value!r} has characters that IAM and EFS refuse")
        return failures

    def replaced_by(
        self, resource: ResourceRequest, olds: Mapping[str, Any], news: Mapping[str, Any], state: Mapping[str, Any]
    ) -> list[str]:
        """What can't change in place; of a regional resource also its region, which is the provider's by default.

        https://registry.terraform.io/providers/hashicorp/aws/latest/docs/guides/enhanced-region-support
        """
        return super().replaced_by(resource, olds, news, state) + ["region"] * self._moves(state)

    def changed(
        self, resource: ResourceRequest, olds: Mapping[str, Any], news: Mapping[str, Any], state: Mapping[str, Any]
    ) -> list[str]:
        """The inputs that differ, the provider's region among them."""
        return super().changed(resource, olds, news, state) + ["region"] * self._moves(state)

    def _moves(self, state: Mapping[str, Any]) -> bool:
        """Whether the region in a resource's ARN is another one; global resources have none."""
        region = str(state.get("arn")).split(":")[3:4]
        return bool(region and region[0]) and region[0] != self.cloud.records.region

    def create(self, resource: ResourceRequest, inputs: dict[str, Any]) -> Record:
        """Make it; a log group that EKS made before is refused."""
        if resource.token == aws_cluster.LOG_GROUP and inputs["name"] in map(_log_group, self._logging_clusters()):
            raise Refusal(f"ResourceAlreadyExistsException: EKS made {inputs['name']} already")
        if resource.token == aws_cluster.LOG_GROUP and inputs["name"] in self.cloud.deleted_resources.log_groups:
            raise Refusal(f"ResourceAlreadyExistsException: EKS made {inputs['name']} again after its deletion")
        if resource.token == aws_cluster.ACCESS_ENTRY:
            self._require_new_principal(inputs["clusterName"], inputs["principalArn"])
        return super().create(resource, inputs)

    def _require_new_principal(self, cluster: str, principal: str) -> None:
        """Refuse a second entry; who builds a cluster with pulumi-eks has the first (pulumi-eks#2373).

        The words are AWS's, from terraform-aws-eks#3293.
        """
        existing = self.cloud.records.get(aws_cluster.ACCESS_ENTRY, f"{cluster}:{principal}")
        if principal == self.cloud.builder or existing:
            raise Refusal(
                f"creating EKS Access Entry ({cluster}:{principal}): operation error EKS: CreateAccessEntry, https "
                "response error StatusCode: 409, ResourceInUseException: The specified access entry resource is "
                "already in use on this cluster."
            )

    def update(
        self, resource: ResourceRequest, identity: str, inputs: dict[str, Any], state: Mapping[str, Any]
    ) -> Record:
        """Change it; a node group's sizes are sent as the provider sends them."""
        with self.cloud.lock:
            group = self.cloud.records.get(resource.token, identity)
            if group is None or resource.token != aws_network.NODE_GROUP:
                return super().update(resource, identity, inputs, state)
            inputs_sent, terminated = scaling.sizes_to_send(group, inputs, state)
            changed = super().update(resource, identity, inputs_sent, state)
            self.cloud.terminated += [(identity, terminated)] * (terminated > 0)
            return changed

    def delete(self, resource: ResourceRequest, identity: str) -> None:
        """Take it away, a node group with its nodes; the log group that EKS writes to stays unless the program has it.

        DeleteNodegroup ends the group's instances (EKS API reference; "all pods ... are drained" first: user guide,
        delete-managed-node-group).
        """
        if resource.token == aws_cluster.LOG_GROUP and identity in map(_log_group, self._logging_clusters()):
            self.cloud.leftovers.append(f"EKS makes log group {identity} again")
        record = self.cloud.records.get(resource.token, identity)
        super().delete(resource, identity)
        if record and record.token == aws_network.NODE_GROUP and (running := scaling.sizes(record)[1]):
            self.cloud.terminated.append((identity, running))
        if record:
            self.cloud.deleted_resources.deleted(record, self.cloud.records)
        if record in self._logging_clusters_of([record]):
            assert record
            if self.cloud.records.get(aws_cluster.LOG_GROUP, _log_group(record)) is None:
                self.cloud.leftovers.append(f"log group {_log_group(record)}, which EKS made")

    def _logging_clusters(self) -> list[Record]:
        return self._logging_clusters_of(self.cloud.records.of(aws_network.CLUSTER))

    def _logging_clusters_of(self, records: list[Record | None] | list[Record]) -> list[Record]:
        return [
            record
            for record in records
            if record and record.token == aws_network.CLUSTER and record.inputs.get("enabledClusterLogTypes")
        ]


def _log_group(cluster: Record) -> str:
    return f"/aws/eks/{cluster.id}/cluster"
