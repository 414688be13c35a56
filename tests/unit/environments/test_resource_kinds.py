"""The table of AWS kinds: what it derives is in the models of the services, as botocore has them."""

from __future__ import annotations

import shlex
from typing import Any, cast

import botocore.session
import pytest
from botocore import xform_name
from botocore.model import OperationModel
from botocore.validate import ParamValidator

from spotmpi.aws.account import Aws
from spotmpi.environments.resource_kinds import RESOURCE_KINDS, ResourceKind


class Models:
    """In place of an account: checks the parameters of each call, and answers that nothing exists."""

    def __init__(self) -> None:
        self._session = botocore.session.get_session()

    def operation(self, service: str, method: str) -> OperationModel:
        """The operation behind a method of boto3's client."""
        model = self._session.get_service_model(service)
        (name,) = [each for each in model.operation_names if xform_name(each) == method]
        return model.operation_model(name)

    def find(self, service: str, region: str, method: str, absent: object, **arguments: Any) -> None:
        """Check one call."""
        report = ParamValidator().validate(arguments, self.operation(service, method).input_shape)
        assert not report.has_errors(), report.generate_report()


MODELS = Models()


@pytest.mark.parametrize("kind", RESOURCE_KINDS, ids=lambda kind: kind.name.replace(" ", "-"))
def test_methods_keys_and_commands_of_a_kind_are_those_of_its_service(kind: ResourceKind) -> None:
    aws, id = cast("Aws", MODELS), "spotmpi-lab:name-12"
    described = MODELS.operation(kind.service, kind.describe).output_shape.members[kind.items]
    members = getattr(described, "member", described)
    item = members.members["Instances"].member if kind.items == "Reservations" else members
    assert kind.id in item.members and kind.status(aws, "us-east-1", id) == "DELETED"
    if kind.delete:
        kind.remove(aws, "us-east-1", id)
        words = shlex.split(kind.deletion(id, "us-east-1"))
        inputs = MODELS.operation(kind.service, kind.delete).input_shape.members
        options = {word[2:] for word in words if word.startswith("--")} - {"region"}
        assert words[:3] == ["aws", kind.service, kind.delete.replace("_", "-")]
        assert options <= {xform_name(each, "-") for each in inputs}
