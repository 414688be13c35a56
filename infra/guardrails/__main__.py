"""The policy pack: every rule, mandatory, for every resource."""

import sys
from pathlib import Path

# Pulumi runs this folder as a script, so the repository is not on the path yet.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pulumi_policy import EnforcementLevel, PolicyPack

from infra.guardrails.pack import policies

if __name__ == "__main__":
    PolicyPack("spotmpi-guardrails", list(policies()), enforcement_level=EnforcementLevel.MANDATORY)
