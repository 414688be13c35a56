"""Measure how fast the ranks read the files of a data set, started as ChainerMN programs are."""

import argparse

from spotmpi.programs.chainermn.exchange import communicator, exchange_options, versions, world_of
from spotmpi.programs.ending import ends_together
from spotmpi.programs.options import described
from spotmpi.programs.reading import chosen, measure, reading_parser
from spotmpi.programs.reporting import Reporter


def main() -> None:
    """Run the program with the options of the command line."""
    options = parse()
    world = world_of(communicator(options))
    details = {**described(options, "chainermn", versions()), "program": "chainermn/read"}
    measure(world, chosen(options.data, options.files), details, Reporter(world.rank))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of *arguments*, by default the command line's."""
    parser = reading_parser(__doc__)
    exchange_options(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    ends_together(main)()
