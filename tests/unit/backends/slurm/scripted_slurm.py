"""Slurm's commands as a test sets them: a folder for PATH, whose programs answer from files and note their arguments.

The form of what they print is recorded from Slurm 22.05.8 (Debian 12): `squeue --format='%i|%T|%r|%N|%j'`,
`sbatch --parsable`, `scontrol show hostnames`, and the words of sbatch for a partition that does not exist.
"""

from __future__ import annotations

from pathlib import Path

REFUSAL = (
    "sbatch: error: invalid partition specified: nowhere\n"
    "sbatch: error: Batch job submission failed: Invalid partition name specified\n"
)
# An argument overrides a variable, and that an option in the script (sbatch(1)). A lost answer is what sbatch says of a
# slurmctld that took the job.
LOST = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"
# Of squeue while there is no slurmctld, or no munged, or a slurmctld that is frozen.
DOWN = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
NO_MUNGE = """\
squeue: error: If munged is up, restart with --num-threads=10
squeue: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": No such file or directory
squeue: error: slurm_send_node_msg: auth_g_create: REQUEST_JOB_INFO has authentication error
slurm_load_jobs error: Protocol authentication error"""
FROZEN = "slurm_load_jobs error: Socket timed out on send/recv operation"
_COUNT = """count() { sh "$DOUBLE/meanwhile"
sed -i 1s/.// "$DOUBLE/down"; [ "$(head -n 1 "$DOUBLE/down")" ] || : > "$DOUBLE/down"
if [ "$1" ]; then printf '%s' "$1"; sed -n '$s/.*error: //p' "$DOUBLE/silence"; else cat "$DOUBLE/silence"; fi >&2; }"""
_SBATCH = """cat > "$DOUBLE/script"
[ -e "$DOUBLE/refusal" ] && { cat "$DOUBLE/refusal" >&2; exit 1; }
name=${SBATCH_JOB_NAME:-$(sed -n 's/^#SBATCH --job-name=//p' "$DOUBLE/script")}
for each; do case $each in --job-name=*) name=${each#*=} ;; esac; done
[ -e "$DOUBLE/lost" ] && { echo "7|PENDING|None||$name" >> "$DOUBLE/queue"; cat "$DOUBLE/lost" >&2; exit 1; }
[ -e "$DOUBLE/silent" ] && exec sleep 60
[ -s "$DOUBLE/down" ] && { count "sbatch: error: Batch job submission failed: "; exit 1; }
echo 7"""
_PROGRAMS = {
    "squeue": '[ -s "$DOUBLE/down" ] && { count; exit 1; }\n'
    'cat "$DOUBLE/queue"; case " $* " in *" --me "*) ;; *) cat "$DOUBLE/queue of others" ;; esac',
    "sbatch": _SBATCH,
    # Not Slurm's: the login node is this machine, with a home in a folder of its own.
    "ssh": '[ -s "$DOUBLE/cut" ] && { sed -i s/.// "$DOUBLE/cut"; echo "Connection refused" >&2; exit 255; }\n'
    'while [ "$1" != -- ]; do shift; done; cd "$DOUBLE/home" && HOME=$PWD sh -c "$3"; exit $?',
    "scancel": '[ -s "$DOUBLE/down" ] && { count "scancel: error: Kill job error on job id $1: "; exit 239; }',
    "scontrol": '[ "$1" = show ] && printf "n0\\nn1\\n"',
    "srun": '[ ! -e "$DOUBLE/step" ] || cat "$DOUBLE/step"',
}


class ScriptedSlurm:
    """The commands in *folder*; `queue` is what squeue prints."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name, text in _PROGRAMS.items():
            call = f'echo {name} "$@" >> "$DOUBLE/calls"'
            (folder / name).write_text(f'#!/bin/sh\nDOUBLE="{folder}"\n{_COUNT}\n{call}\n{text}\nexit 0\n')
            (folder / name).chmod(0o755)
        (folder / "queue").touch()
        (folder / "queue of others").touch()
        (folder / "meanwhile").touch()
        (folder / "home").mkdir()

    def show(
        self, run: str, state: str, reason: str = "None", nodes: str = "", job: int = 7, mine: bool = True
    ) -> None:
        """Let squeue show a job of *run* besides those of before; another user may give a job the same name."""
        with (self.folder / ("queue" if mine else "queue of others")).open("a") as file:
            file.write(f"{job}|{state}|{reason}|{nodes}|{run}\n")

    def clear(self) -> None:
        """Let squeue show nothing."""
        (self.folder / "queue").write_text("")

    def refuse(self) -> None:
        """Let sbatch refuse from now on."""
        (self.folder / "refusal").write_text(REFUSAL)

    def lose_answers(self) -> None:
        """Let sbatch fail from now on though slurmctld has taken the job."""
        (self.folder / "lost").write_text(LOST)

    def lose_controller(self, count: int = 10_000, words: str = DOWN) -> None:
        """Let so many calls of sbatch, squeue and scancel find no slurmctld from now on."""
        (self.folder / "silence").write_text(words + "\n")
        (self.folder / "down").write_text("." * count)

    def pass_time(self, command: str) -> None:
        """Execute a shell *command* whenever one of them has tried for its ten seconds to find slurmctld."""
        (self.folder / "meanwhile").write_text(command)

    def find_controller(self) -> None:
        """Let squeue find slurmctld again."""
        (self.folder / "down").unlink()

    def refuse_connections(self, count: int) -> None:
        """Let so many calls of ssh find no login node."""
        (self.folder / "cut").write_text("." * count)

    def fall_silent(self) -> None:
        """Let sbatch never answer from now on."""
        (self.folder / "silent").touch()

    @property
    def script(self) -> str:
        """The newest script that sbatch got."""
        return (self.folder / "script").read_text()

    @property
    def calls(self) -> list[str]:
        """Every command with its arguments, in order."""
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []
