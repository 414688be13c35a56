"""What a wheel carries besides the package: images, examples, studies, and the Pulumi project.

They lie in `spotmpi/_project` as they do in a checkout, where `spotmpi.core.names` finds them. An editable install
needs none of them.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDERS = ("images", "infra", "stacks", "jobs/examples", "jobs/studies")
SCRIPTS = ("scripts/ci-preview", "scripts/ci-up", "scripts/ci-destroy", "scripts/instance-types")
FILES = ("Pulumi.yaml", *SCRIPTS)
WORKFLOWS = ".github/workflows/environment-*.yml"


class WheelFiles(BuildHookInterface[Any]):
    """Adds these files to wheels that get installed."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name each file's place in the wheel."""
        if version == "standard":
            root = Path(self.root)
            workflows = (str(path.relative_to(root)) for path in root.glob(WORKFLOWS))
            build_data["force_include"].update(
                {str(root / name): f"spotmpi/_project/{name}" for name in (*FOLDERS, *FILES, *workflows)}
            )
