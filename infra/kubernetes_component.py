"""Components of Kubernetes objects, which are deleted together with their cluster."""

import copy

import pulumi


class KubernetesComponent(pulumi.ComponentResource):
    """A component of Kubernetes objects.

    `child()` passes on `deleted_with` and `depends_on`: when the cluster is deleted, its objects are dropped from the
    state instead of deleted one by one, so that a cluster that no longer exists blocks nothing. The component itself
    has no `deleted_with`, as every child inherits its parent's: its IAM roles and keys would be dropped too.
    """

    def __init__(self, kind: str, name: str, opts: pulumi.ResourceOptions):
        own = copy.copy(opts)
        own.deleted_with = None
        # The type is part of every child's URN: another one would replace them all.
        super().__init__(f"spotmpi:inside:{kind}", name, None, own)
        self._options = opts

    def child(self, *after: pulumi.Resource) -> pulumi.ResourceOptions:
        """The options of a child that also waits for `after`."""
        depends_on = self._options.depends_on or []
        return pulumi.ResourceOptions(
            parent=self, deleted_with=self._options.deleted_with, depends_on=[*_as_list(depends_on), *after]
        )


def _as_list(value: object) -> list[pulumi.Resource]:
    return list(value) if isinstance(value, list | tuple) else [value]  # type: ignore[list-item]
