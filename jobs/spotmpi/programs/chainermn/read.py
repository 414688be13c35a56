"""Measure how fast the ranks read the files of a data set, started as ChainerMN programs are."""

from spotmpi.programs.chainermn.gradients import communicator, create_world, gradient_options, versions
from spotmpi.programs.exits import exit_together
from spotmpi.programs.options import describe_options
from spotmpi.programs.reading import choose_files, measure, reading_parser
from spotmpi.programs.reporting import Reporter


def main() -> None:
    """Run the program with the options of the command line."""
    parser = reading_parser(__doc__)
    gradient_options(parser)
    options = parser.parse_args()
    world = create_world(communicator(options))
    details = {**describe_options(options, "chainermn", versions()), "program": "chainermn/read"}
    measure(world, choose_files(options.data, options.files), details, Reporter(world.rank))


if __name__ == "__main__":
    exit_together(main)()
