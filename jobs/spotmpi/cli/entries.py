"""The commands that `spotmpi data` and `spotmpi models` have in common: list, show, diff, promote, verify and rm."""

from __future__ import annotations

import inspect
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spotmpi.cli import completion
from spotmpi.cli.options import Json
from spotmpi.core.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spotmpi.entries.manifest import Manifest
    from spotmpi.entries.store import Store
    from spotmpi.entries.versions import Promotion

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="Folder or URL of the store (default: $SPOTMPI_STORE, else the folder store beside that of runs).",
        metavar="STORE",
    ),
]
EntryName = Annotated[
    str,
    typer.Argument(
        help="NAME (its newest), NAME:VERSION, NAME:ALIAS, NAME@KEY or KEY (its first digits, 6 or more).",
        metavar="NAME",
        autocompletion=completion.entries,
    ),
]
_FILES = 20  # that `show` prints
_METRICS = 3  # that the list shows
_NUMBERS = ("ROWS", "MB", "FILES")  # columns of it


class EntryCommands:
    """The commands for the entries of a *kind*, which people call a *word*, such as ``model``; *how* makes one."""

    def __init__(self, kind: str, word: str, how: str) -> None:
        self._kind, self._word, self._how = kind, word, how

    def add_to(self, app: typer.Typer) -> None:
        """Add them to a group of commands."""
        commands: dict[str, Callable[..., None]] = {
            "list": self.list_entries,
            "show": self.show,
            "diff": self.diff,
            "promote": self.promote,
            "verify": self.verify,
            "rm": self.remove,
        }
        for name, command in commands.items():
            app.command(name, help=(inspect.getdoc(command) or "").format(word=self._word))(command)

    def list_entries(
        self,
        name: Annotated[str | None, typer.Argument(help="Only versions of this name.", metavar="NAME")] = None,
        store: StoreOption = None,
        as_json: Json = False,
    ) -> None:
        """List {word}s by name and version."""
        from spotmpi.core.wording import echo

        opened = open_store(store)
        found = opened.list(self._kind, name, on_damage=echo)
        if name and not found:
            found = [opened.find(name, self._kind)]  # one of its versions, or nothing at all
        if found or as_json:
            _show_list([summary(each, opened) for each in found], as_json)
            return
        other = "--store or SPOTMPI_STORE name another store"
        echo(f"no {self._word}s in {opened.storage.url}: {self._how} makes one; {other}")

    def show(
        self,
        name: EntryName,
        html: Annotated[
            Path | None, typer.Option("--html", help="Write it as a page, with curves and lineage.", metavar="FILE")
        ] = None,
        store: StoreOption = None,
        as_json: Json = False,
    ) -> None:
        """Show what a {word} was made from, its files and aliases."""
        opened = open_store(store)
        found = opened.find(name, self._kind)
        if html is not None:
            from spotmpi.api.entry_page import entry_report
            from spotmpi.report import files

            files.write_page(entry_report(found, opened, time.time()), html)
        if html is None or as_json:
            _show_manifest(found, opened, as_json, {} if html is None else {"page": str(html)})
        else:
            print(f"{found.title} -> {html}")

    def diff(
        self,
        one: Annotated[str, typer.Argument(help="One, as `show` takes it.", metavar="A")],
        other: Annotated[str, typer.Argument(help="Another one.", metavar="B")],
        store: StoreOption = None,
        as_json: Json = False,
    ) -> None:
        """Print what differs between two {word}s."""
        from spotmpi.core.wording import printable
        from spotmpi.entries.differences import differences

        opened = open_store(store)
        lines = differences(opened.find(one, self._kind), opened.find(other, self._kind))
        if as_json:
            print(json.dumps(lines))
            return
        for line in lines or ["nothing that counts differs"]:
            print(printable(line))

    def promote(
        self,
        name: EntryName,
        alias: Annotated[str, typer.Argument(help="The alias, such as prod.", metavar="ALIAS")],
        remove: Annotated[bool, typer.Option("--remove", help="Remove the alias, if it names this version.")] = False,
        store: StoreOption = None,
        as_json: Json = False,
    ) -> None:
        """Let an alias name a version.

        Of two promotions at the same time one holds, and the other one fails.
        """
        from spotmpi.api import entries

        opened = open_store(store)
        found = opened.find(name, self._kind)
        done = entries.promote(found, alias, opened, remove)
        if as_json:
            print(json.dumps({"name": found.name, "alias": alias, **_promotion(done)}))
        else:
            print(f"{found.name}:{alias} was removed" if remove else f"{found.name}:{alias} is {found.title}")

    def verify(
        self,
        names: Annotated[
            list[str] | None, typer.Argument(help="As `show` takes them (default: all).", metavar="NAME")
        ] = None,
        store: StoreOption = None,
        as_json: Json = False,
    ) -> None:
        """Compare every file with its SHA-256; exit 1 if one is wrong."""
        from spotmpi.core.wording import printable

        opened, kind, problems = open_store(store), self._kind, list[str]()
        chosen = [opened.find(each, kind) for each in names or ()] or opened.list(kind, on_damage=problems.append)
        named = {each.name for each in chosen} if names else {*opened.storage.names(kind)}
        for each in sorted(named):
            problems += opened.alias_problems(kind, each)
        for manifest in chosen:
            problems += opened.problems(manifest)
        if as_json:
            print(json.dumps({"verified": len(chosen), "problems": problems}))
        else:
            print(
                *map(printable, problems),
                f"{counted(len(chosen), self._word)} read, {counted(len(problems), 'problem')}",
                sep="\n",
            )
        if problems:
            raise typer.Exit(1)

    def remove(
        self,
        names: Annotated[list[str], typer.Argument(help="As `show` takes them.", metavar="NAME")],
        store: StoreOption = None,
        as_json: Json = False,
    ) -> None:
        """Remove {word}s from the store.

        Refused for what an alias, another entry or the spec of a run on this machine names.
        """
        from spotmpi.api import entries

        opened, removed = open_store(store), list[dict[str, Any]]()
        chosen = [opened.find(name, self._kind) for name in names]  # before the newest of a name is another version
        for found in {each.reference: each for each in chosen}.values():
            entries.remove(found, opened)
            removed.append(summary(found, opened))
            if not as_json:
                print(f"removed {found.title}")
        if as_json:
            print(json.dumps(removed))


def open_store(store: str | None) -> Store:
    """The store, with what runs that have ended have made and is to be kept (the key `keep` of their specs)."""
    from spotmpi.api import keep_requests
    from spotmpi.core.wording import echo
    from spotmpi.entries.store import Store

    keep_requests.keep_ended(echo)
    return Store(store)


def summary(manifest: Manifest, store: Store) -> dict[str, Any]:
    """The most important of an entry, as JSON values."""
    from spotmpi.entries.versions import current

    aliases = current(store.versions(manifest.kind, manifest.name).aliases(), manifest.version)
    return {
        "name": manifest.name,
        "version": manifest.version,
        "key": manifest.key,
        "aliases": list(aliases),
        "created": manifest.created,
        "rows": manifest.rows,
        "bytes": manifest.bytes,
        "files": len(manifest.files),
        "run": manifest.run,
        "cost": manifest.cost,
        "metrics": manifest.details.get("metrics", {}),
        "path": store.place(manifest.reference),
    }


def _show_list(entries: Sequence[dict[str, Any]], as_json: bool) -> None:
    """Print entries; columns that are empty for all of them are left out."""
    from spotmpi.cli.tables import show_table

    if as_json:
        print(json.dumps(entries))
        return
    titles = ("NAME", "KEY", "ALIASES", "CREATED", "ROWS", "MB", "FILES", "RUN", "METRICS")
    show_table(titles, [_row(each) for each in entries], right=[titles.index(each) for each in _NUMBERS], empty="")


def _row(entry: dict[str, Any]) -> Sequence[str]:
    from spotmpi.cli.tables import moment

    metrics = [f"{name}={value}" for name, value in entry["metrics"].items() if isinstance(value, int | float)]
    return (
        f"{entry['name']}:{entry['version']}",
        entry["key"][:12],
        ", ".join(entry["aliases"]),
        moment(entry["created"]),
        "" if entry["rows"] is None else f"{entry['rows']:,}",
        f"{entry['bytes'] / 1e6:,.1f}",
        str(entry["files"]),
        entry["run"] or "",
        " ".join(metrics[:_METRICS]),
    )


def _show_manifest(manifest: Manifest, store: Store, as_json: bool, also: dict[str, str]) -> None:
    """Print what an entry was made from, where its files are, of many files the first ones, and its aliases.

    JSON has the keys *also*.
    """
    from spotmpi.api.lineage import entry_node, lines
    from spotmpi.cli.tables import moment
    from spotmpi.core.wording import printable

    place = store.place(manifest.reference)
    aliases = store.versions(manifest.kind, manifest.name).aliases()
    if as_json:
        import msgspec

        history = {alias: [_promotion(each) for each in past] for alias, past in aliases.items()}
        print(json.dumps({**msgspec.to_builtins(manifest), "path": place, "history": history, **also}))
        return
    print(*map(printable, lines(entry_node(manifest, store))), sep="\n")
    print(f"files in {printable(place)}:")
    for file in manifest.files[:_FILES]:
        print(f"  {printable(file.path)}  {file.bytes:,} bytes  {file.sha256[:12]}")
    if len(manifest.files) > _FILES:
        print(f"  and {len(manifest.files) - _FILES} more (--json has all)")
    for alias, past in aliases.items():
        print(f"history of {manifest.name}:{alias}:")
        for each in past:
            what = f"version {each.version}" if each.version else "removed"
            print(f"  {moment(each.time)}  {what}, by {printable(each.by)}")


def _promotion(promotion: Promotion) -> dict[str, Any]:
    return {"version": promotion.version, "time": promotion.time, "by": promotion.by}
