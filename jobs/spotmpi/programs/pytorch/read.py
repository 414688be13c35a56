"""Measure how fast the ranks read the files of a data set, started as PyTorch programs are."""

import argparse

from spotmpi.programs.ending import ends_together
from spotmpi.programs.options import described
from spotmpi.programs.pytorch.exchange import versions
from spotmpi.programs.pytorch.processes import finish, join, process_options
from spotmpi.programs.reading import chosen, measure, reading_parser
from spotmpi.programs.reporting import Reporter


def main() -> None:
    """Run the program with the options of the command line."""
    options = parse()
    world = join(options)
    details = {**described(options, "pytorch", versions()), "program": "pytorch/read"}
    measure(world, chosen(options.data, options.files), details, Reporter(world.rank))
    finish()


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of *arguments*, by default the command line's."""
    parser = reading_parser(__doc__)
    process_options(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    ends_together(main)()
