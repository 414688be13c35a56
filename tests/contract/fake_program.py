"""A training program without training, for tests of what surrounds one.

It is handed over as text (``python3 -c``), so it runs in any image, and it speaks the protocol in its own words: were
ours misspelt, it would not follow. What it does beside counting iterations is told by variables:

    FAKE_ITERATIONS  how many; FAKE_PAUSE  seconds of each; FAKE_EVERY  iterations between checkpoints
    FAKE_FAULT       JSON: attempt -> [iteration, what], what being "exit N", "kill", "hang" or "fatal"
"""

from __future__ import annotations

import json
from typing import Any

SOURCE = r"""
import json, os, signal, sys, time

def say(kind, **values):
    print(json.dumps({"spotmpi": kind, **values}), flush=True)

def variable(name, default):
    return type(default)(os.environ.get("FAKE_" + name, default))

def fail(what):
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "hang":
        time.sleep(3600)
    if what == "fatal":
        say("fatal", reason="wrong key: use another")
        sys.exit(78)
    print("about to fail", file=sys.stderr, flush=True)
    os._exit(int(what.split()[1]))

rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("RANK") or 0)
total, pause, every = variable("ITERATIONS", 5), variable("PAUSE", 0.01), variable("EVERY", 1)
fault = json.loads(variable("FAULT", "{}")).get(os.environ["SPOTMPI_ATTEMPT"], [None, None])
kept = os.path.join(os.environ["SPOTMPI_CHECKPOINT_PATH"], "fake.json")
asked = []

def write(iteration, reason):
    os.makedirs(os.path.dirname(kept), exist_ok=True)
    with open(kept + ".part", "w") as file:
        json.dump(iteration, file)
    os.replace(kept + ".part", kept)
    say("checkpoint", iteration=iteration, path=kept, seconds=0.0, reason=reason)

done = 0
if os.path.exists(kept):
    with open(kept) as file:
        done = json.load(file)
over = kept + ".over-in-attempt-" + os.environ["SPOTMPI_ATTEMPT"]
if rank:  # as long as rank 0 goes on, so do the others
    while not os.path.exists(over):
        time.sleep(0.02)
    sys.exit()
signal.signal(signal.SIGUSR1, lambda number, frame: asked.append(number))
with open(os.environ["SPOTMPI_PID_FILE"], "w") as file:
    file.write(str(os.getpid()))
print("hello from attempt " + os.environ["SPOTMPI_ATTEMPT"], flush=True)
say("context", world_size=int(os.environ["SPOTMPI_WORLD_SIZE"]), total_iterations=total, samples_per_iteration=8)
if done:
    say("resumed", iteration=done, path=kept)
for iteration in range(done + 1, total + 1):
    time.sleep(pause)
    say("metric", iteration=iteration, seconds=[pause], loss=1.0 / iteration)
    if asked:
        asked.clear()
        write(iteration, "notice")
    elif iteration % every == 0:
        write(iteration, "timer")
    if fault[0] == iteration:
        fail(fault[1])
say("result", iteration=total, loss=1.0 / total, parameters="sha256:0")
print("bye", flush=True)
os.makedirs(os.path.dirname(over), exist_ok=True)
open(over, "w").close()
"""


def fake_job(
    iterations: int = 5, pause: float = 0.01, every: int = 1, fault: dict[int, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """The values of a spec that runs the fake program; *more* are further keys of the spec."""
    variables = {"FAKE_ITERATIONS": str(iterations), "FAKE_PAUSE": str(pause), "FAKE_EVERY": str(every)}
    variables["FAKE_FAULT"] = json.dumps({str(attempt): what for attempt, what in (fault or {}).items()})
    return {"name": "fake", "command": ["python3", "-c", SOURCE], "launcher": "none", "env": variables, **more}
