"""Which file system an environment uses: its own, the one of its data stack, or one that was there before."""

import pulumi

from infra import names
from infra.settings import Settings
from infra.storage import FileSystem, FileSystemArgs, FileSystemIds


def file_system(settings: Settings, opts: pulumi.ResourceOptions) -> FileSystemIds:
    """The ids of the file system and its access point, made here only if no other stack keeps them."""
    storage = settings.storage
    if storage.file_system_id and storage.access_point_id:
        return FileSystemIds(
            pulumi.Output.from_input(storage.file_system_id), pulumi.Output.from_input(storage.access_point_id)
        )
    if settings.kind == "compute" and storage.keep:
        return _of_data_stack(settings)
    protect = settings.kind == "data"
    made = FileSystem(settings.name, FileSystemArgs(storage, settings.zone, protect, settings.all_tags), opts)
    return made.ids


def _of_data_stack(settings: Settings) -> FileSystemIds:
    stack = names.data_stack(settings)
    reference = pulumi.StackReference(f"{pulumi.get_organization()}/{settings.project}/{stack}")

    def output(key: str, zone: str | None, value: str | None) -> str:
        if value is None:
            raise pulumi.RunError(f"stack {stack!r} has no output {key!r}: run `pulumi up --stack {stack}` first")
        if zone is not None and zone != settings.zone:
            raise pulumi.RunError(f"the storage of {stack!r} is in {zone}: set `zone` of {settings.stack!r} to {zone}")
        return value

    def looked_up(key: str) -> pulumi.Output[str]:
        both = pulumi.Output.all(reference.get_output("zone"), reference.get_output(key))
        return both.apply(lambda pair: output(key, *pair))

    return FileSystemIds(looked_up("file_system_id"), looked_up("access_point_id"))
