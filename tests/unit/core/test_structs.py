"""msgspec's models are inspected where they are defined, not at their first use, which threads may make at once."""

from __future__ import annotations

import subprocess
import sys

from tests.tools import REPOSITORY

PRODUCT = REPOSITORY / "jobs" / "spotmpi"
# Prints what msgspec inspects when it is used, in a new interpreter, without the lock of what has one.
PROGRAM = """
import importlib, sys
import msgspec

late, use = [], ""

def watch(frame, event, argument):
    inspects = event == "call" and frame.f_code.co_name == "get_class_annotations"
    if inspects and not api._MODELS_LOCK.locked():
        late.append(f"{use}: {frame.f_locals['obj'].__qualname__}")

def models(model):
    for each in model.__subclasses__():
        yield each
        yield from models(each)

for module in sys.argv[1:]:
    importlib.import_module(module)
from spotmpi.backends.kubernetes.client import api, kubeconfig
from spotmpi.backends.kubernetes.submit.pod_templates import validate

own = [each for each in models(msgspec.Struct) if each.__module__.startswith("spotmpi.")]
sys.setprofile(watch)
for model in own:
    use = model.__module__
    msgspec.json.Decoder(model)
use = "kubeconfig"
access = {"clusters": ("cluster", {}), "users": ("user", {}), "contexts": ("context", {"cluster": "a", "user": "a"})}
kubeconfig._parse({name: [{"name": "a", key: value}] for name, (key, value) in access.items()})
use = "pod template"
validate({"spec": {"containers": [{"name": "a"}]}}, ())
print(len(own), *late, sep="\\n")
"""


def test_no_model_is_inspected_at_its_first_use() -> None:
    files = [path for path in PRODUCT.rglob("*.py") if "msgspec" in path.read_text(encoding="utf-8")]
    modules = [".".join(path.relative_to(PRODUCT.parent).with_suffix("").parts) for path in sorted(files)]
    command = [sys.executable, "-c", PROGRAM, *modules]
    count, *late = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
    assert int(count) >= 10
    assert late == []
