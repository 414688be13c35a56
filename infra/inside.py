"""What lives inside the cluster: components whose children go with it."""

import copy

import pulumi


class Inside(pulumi.ComponentResource):
    """A component of Kubernetes objects.

    `child()` hands on `deleted_with` and `depends_on`: when the cluster goes, its objects are forgotten instead of
    deleted one by one, and a cluster that is already gone blocks nothing. The component itself has no `deleted_with`,
    because the engine gives a parent's to every child: roles and keys beside the objects would be forgotten too.
    """

    def __init__(self, kind: str, name: str, opts: pulumi.ResourceOptions):
        own = copy.copy(opts)
        own.deleted_with = None
        super().__init__(f"spotmpi:inside:{kind}", name, None, own)
        self._given = opts

    def child(self, *after: pulumi.Resource) -> pulumi.ResourceOptions:
        """Options for a child that also waits for `after`."""
        given = self._given.depends_on or []
        return pulumi.ResourceOptions(
            parent=self, deleted_with=self._given.deleted_with, depends_on=[*_as_list(given), *after]
        )


def _as_list(given: object) -> list[pulumi.Resource]:
    return list(given) if isinstance(given, list | tuple) else [given]  # type: ignore[list-item]
