"""Rules as Pulumi policies."""

from collections.abc import Sequence

from pulumi_policy import Policy, ReportViolation, ResourceValidationArgs, ResourceValidationPolicy

from infra.guardrails.rules import RULES, Rule


def policies() -> Sequence[Policy]:
    """One policy for each rule, named after it."""
    return [_policy(rule) for rule in RULES]


def _policy(rule: Rule) -> ResourceValidationPolicy:
    def validate(args: ResourceValidationArgs, report: ReportViolation) -> None:
        for finding in rule.check(args.resource_type, args.props):
            report(finding, args.urn)

    return ResourceValidationPolicy(name=rule.name, description=rule.forbids, validate=validate)
