"""Measure how fast the ranks read the files of a data set, started as PyTorch programs are."""

from spotmpi.programs.exits import exit_together
from spotmpi.programs.options import describe_options
from spotmpi.programs.pytorch.gradients import versions
from spotmpi.programs.pytorch.processes import finish, join, process_options
from spotmpi.programs.reading import choose_files, measure, reading_parser
from spotmpi.programs.reporting import Reporter


def main() -> None:
    """Run the program with the options of the command line."""
    parser = reading_parser(__doc__)
    process_options(parser)
    options = parser.parse_args()
    world = join(options)
    details = {**describe_options(options, "pytorch", versions()), "program": "pytorch/read"}
    measure(world, choose_files(options.data, options.files), details, Reporter(world.rank))
    finish()


if __name__ == "__main__":
    exit_together(main)()
