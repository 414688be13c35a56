"""What AWS still tells of things that are deleted, and what it makes again by itself.

The tagging API lists terminated instances for about an hour (boto3#1704), deleted volumes (aws-cli#8197) and KMS keys
for the days until their deletion. EKS's service-linked role makes a cluster's log group again, without tags, when log
lines arrive after both are deleted (terraform-aws-eks#2446, #2763); here it does so once for each deleted cluster.
"""

from dataclasses import dataclass, field

from tests.engine.providers.aws_cluster import KEY, LOG_GROUP
from tests.engine.providers.aws_network import CLUSTER, NODE_GROUP
from tests.engine.providers.records import ACCOUNT, Record, Records


@dataclass
class DeletedResources:
    """`tagged`: environment by ARN of what is gone; `log_groups`: names of those that EKS has made again."""

    tagged: dict[str, str] = field(default_factory=dict)
    log_groups: set[str] = field(default_factory=set)
    _late: set[str] = field(default_factory=set)  # log groups for which lines are on their way

    def deleted(self, record: Record, records: Records) -> None:
        """Remember what was just deleted."""
        environment = str((record.inputs.get("tags") or {}).get("spotmpi:environment"))
        if record.token == KEY:
            self.tagged[record.outputs["arn"]] = environment
        elif record.token == NODE_GROUP:
            for kind, prefix in (("instance", "i"), ("volume", "vol")):
                id = f"{prefix}-{records.new_hex(record.id)}"
                self.tagged[f"arn:aws:ec2:{records.region}:{ACCOUNT}:{kind}/{id}"] = environment
        elif record.token == CLUSTER and record.inputs.get("enabledClusterLogTypes"):
            self._late.add(f"/aws/eks/{record.id}/cluster")
        elif record.token == LOG_GROUP and record.id in self._late:
            self._late.discard(record.id)
            self.log_groups.add(record.id)
