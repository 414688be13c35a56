"""The Auto Scaling API over HTTP, for programs that call it beside the engine: sizes of groups, read and set."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from tests.cloud.account.management import SIZES, AutoScaling
from tests.engine.providers.cloud import Cloud
from tests.engine.providers.records import Refusal
from tests.engine.providers.scaling import resize, scaling_groups
from tests.testbed.web import answering


def answer(cloud: Cloud, resource: dict[str, str]) -> str:
    """The XML that AWS answers to a request in its query protocol; Refused where it would refuse."""
    action = resource["Action"]
    if action == "UpdateAutoScalingGroup":
        resize(cloud, resource["AutoScalingGroupName"], {key: int(resource[key]) for key in SIZES if key in resource})
        return _response(action, "")
    if action == "DescribeAutoScalingGroups":
        groups = AutoScaling(scaling_groups(cloud))
        described = groups.describe_auto_scaling_groups(groups.region, _request(resource))
        members = "".join(map(_member, described["AutoScalingGroups"]))
        result = f"<DescribeAutoScalingGroupsResult><AutoScalingGroups>{members}</AutoScalingGroups>"
        return _response(action, f"{result}</DescribeAutoScalingGroupsResult>")
    raise Refusal(f"{action}: add it to tests/engine/providers/scaling_api.py")


def _request(resource: dict[str, str]) -> dict[str, Any]:
    """The names and the filter of a request."""
    names = [value for key, value in resource.items() if key.startswith("AutoScalingGroupNames.")]
    name, value = (resource.get(f"Filters.member.1.{key}") for key in ("Name", "Values.member.1"))
    return {"AutoScalingGroupNames": names, "Filters": [{"Name": name, "Values": [value]}] if name else []}


def _member(group: dict[str, Any]) -> str:
    return f"<member>{''.join(f'<{key}>{group[key]}</{key}>' for key in ('AutoScalingGroupName', *SIZES))}</member>"


def _response(action: str, result: str) -> str:
    space = "http://autoscaling.amazonaws.com/doc/2011-01-01/"
    metadata = "<ResponseMetadata><RequestId>1</RequestId></ResponseMetadata>"
    return f'<{action}Response xmlns="{space}">{result}{metadata}</{action}Response>'


@contextmanager
def serving_scaling(cloud: Cloud) -> Iterator[str]:
    """Serve the API on a port of this machine while the context lasts; gives its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            try:
                status, text = 200, answer(cloud, dict(parse_qsl(body)))
            except Refusal as error:
                code = f"<Code>ValidationError</Code><Message>{escape(str(error))}</Message>"
                status, text = 400, f"<ErrorResponse><Error>{code}</Error></ErrorResponse>"
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with answering(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as address:
        yield f"http://{address}"
