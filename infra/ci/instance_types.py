"""`scripts/instance-types`: adds types to infra/instance_types.json, with facts from EC2's DescribeInstanceTypes."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import boto3
import botocore.exceptions

from infra.ci.errors import CiError
from infra.instance_types import TABLE, facts


def main(arguments: Sequence[str], table: Path = TABLE) -> int:
    """Exit status: 1 for an error, which names the remedy; the table changes only if every type could be added."""
    parser = argparse.ArgumentParser(
        "instance-types", description="Add EC2 instance types to infra/instance_types.json."
    )
    parser.add_argument("types", nargs="+", metavar="TYPE", help="an instance type, for example g7e.2xlarge")
    parser.add_argument("--region", help="a region that offers the types (default: that of the AWS configuration)")
    options = parser.parse_args(arguments)
    try:
        rows = described(options.types, options.region)
    except CiError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    document = json.loads(table.read_text(encoding="utf-8"))
    table.write_text(render(document["source"], document["types"] | rows), encoding="utf-8")
    print(f"{table}: {', '.join(rows)}")
    return 0


def described(names: Sequence[str], region: str | None) -> dict[str, dict[str, Any]]:
    """The facts of each type by name; CiError for a type that the region lacks or environments can't run."""
    # A filter ignores unknown names; as InstanceTypes, one of them would fail the whole call.
    filters = [{"Name": "instance-type", "Values": list(names)}]
    try:
        client = boto3.client("ec2", region_name=region)
        pages = client.get_paginator("describe_instance_types").paginate(Filters=filters)
        entries = {entry["InstanceType"]: entry for page in pages for entry in page["InstanceTypes"]}
        missing = [name for name in names if name not in entries]
        if missing:
            where = client.meta.region_name
            raise CiError(f"EC2 has no instance type {', '.join(missing)} in {where}: check the name, or set --region")
        return {name: facts(entries[name]) for name in names}
    except botocore.exceptions.NoRegionError as error:
        raise CiError("no AWS region is configured: set --region to one that offers the types") from error
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
        raise CiError(
            f"EC2 did not describe the types: {error}; log in to AWS with ec2:DescribeInstanceTypes"
        ) from error
    except ValueError as error:
        raise CiError(f"can't add {error}") from error


def render(source: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The table as text, one instance type a line."""
    lines = ",\n".join(f'  "{name}": {json.dumps(rows[name])}' for name in sorted(rows))
    return f'{{\n  "source": {json.dumps(source)},\n  "types": {{\n{lines}\n  }}\n}}\n'
