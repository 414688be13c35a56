"""The Auto Scaling API over HTTP, for programs that call it beside the engine: sizes of groups, read and set."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from tests.cloud.account.management import SIZES
from tests.engine.providers.aws_network import NODE_GROUP
from tests.engine.providers.cloud import Cloud
from tests.engine.providers.records import Refusal
from tests.engine.providers.scaling import resize, scaling_group, sizes


def answer(cloud: Cloud, resource: dict[str, str]) -> str:
    """The XML that AWS answers to a request in its query protocol; Refused where it would refuse."""
    action = resource["Action"]
    if action == "UpdateAutoScalingGroup":
        resize(cloud, resource["AutoScalingGroupName"], {key: int(resource[key]) for key in SIZES if key in resource})
        return _response(action, "")
    if action == "DescribeAutoScalingGroups":
        names = [value for key, value in resource.items() if key.startswith("AutoScalingGroupNames.")]
        if resource.get("Filters.member.1.Name") == "tag:eks:cluster-name":
            cluster = resource["Filters.member.1.Values.member.1"]
            names = [
                scaling_group(each) for each in cloud.records.of(NODE_GROUP) if each.inputs["clusterName"] == cluster
            ]
        members = "".join(_member(cloud, name) for name in names)
        result = f"<DescribeAutoScalingGroupsResult><AutoScalingGroups>{members}</AutoScalingGroups>"
        return _response(action, f"{result}</DescribeAutoScalingGroupsResult>")
    raise Refusal(f"{action}: add it to tests/engine/providers/scaling_api.py")


def _member(cloud: Cloud, name: str) -> str:
    for group in cloud.records.of(NODE_GROUP):
        if scaling_group(group) == name:
            low, desired, high = sizes(group)
            values = {"AutoScalingGroupName": name, "MinSize": low, "MaxSize": high, "DesiredCapacity": desired}
            return f"<member>{''.join(f'<{key}>{value}</{key}>' for key, value in values.items())}</member>"
    return ""


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

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
