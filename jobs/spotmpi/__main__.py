"""`python -m spotmpi`, for where the folder of the `spotmpi` command is not on PATH."""

from spotmpi.cli.main import main

if __name__ == "__main__":
    main()
