"""The environment of one stack: read the settings, declare the resources, export what jobs need."""

import sys
from datetime import UTC, datetime
from pathlib import Path

# Pulumi runs this folder as a script, so the repository is not on the path yet.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from infra.program import build
from infra.stack_config import current

if __name__ == "__main__":
    build(current(), datetime.now(UTC).date())
