"""The plain tests that may be skipped, each for its reason: any other skip is a failure, so that none goes unnoticed.

Tests of the other tiers, and nightly ones, may need what only some machines have, and say so themselves.
"""

from __future__ import annotations

import pytest

from tests.tier_files import TIERS

OTHER_TIERS = (*TIERS, "nightly")

_REAL_MPIRUN = "the chainermn image's environment is not installed yet: tests of programs install it"
_REAL_SSH = "needs ssh: openssh-client"
_OPENSSL = "needs openssl"
_ROOT = "needs root for a file system of its own"
_MOUNT = "may not mount here"
_GIT = "not a git checkout"
_NAMESPACE = "needs a network namespace: unshare of util-linux, and a kernel that lets its user have one"
_OPEN_MPI_4 = "Open MPI 4 is not installed"

_LAUNCHERS = "tests/unit/agent/test_launchers.py::"
_NETWORK = "tests/unit/agent/test_network.py::"
_SILENT = (
    "tests/unit/agent/test_peers.py::"
    "test_a_host_that_acknowledges_nothing_is_lost_within_seconds_and_an_agent_that_does_nothing_is_not"
)
_STARTS = "tests/unit/agent/test_remote_processes.py::"
_CONNECTION = "tests/unit/agent/test_connection.py::"
_FAULTS = "tests/unit/backends/local/test_folder_faults.py::"
_SYSTEM = "tests/unit/backends/local/test_bare_system.py::"
_WHEEL = "tests/package/test_wheel.py::"
_MPIRUN = f"{_LAUNCHERS}test_a_real_open_mpi_takes_the_users_argument_in_the_place_of_the_default"

# On a machine with the README's packages only, an ordinary user's tests skip what is here, less `_MOUNT` and `_GIT`.
MAY_BE_SKIPPED: dict[str, tuple[str, ...]] = {
    f"{_MPIRUN}[--bind-to core]": (_REAL_MPIRUN,),
    f"{_MPIRUN}[--map-by node:OVERSUBSCRIBE]": (_REAL_MPIRUN,),
    f"{_MPIRUN}[--mca btl self,sm]": (_REAL_MPIRUN,),
    f"{_NETWORK}test_the_real_ssh_keygen_accepts_generated_keys_and_refuses_others": (_REAL_SSH,),
    f"{_SILENT}[cut-lost]": (_NAMESPACE,),
    f"{_SILENT}[stalled-alive]": (_NAMESPACE,),
    f"{_STARTS}test_a_real_mpirun_starts_its_daemon_on_another_node_by_the_agents[4]": (_OPEN_MPI_4,),
    f"{_CONNECTION}test_the_remedy_for_a_secret_without_tls_files_makes_files_that_agents_accept": (_OPENSSL,),
    f"{_FAULTS}test_a_read_only_run_folder_is_a_one_line_error_and_nothing_is_started": (_ROOT, _MOUNT),
    f"{_FAULTS}test_a_full_disk_ends_the_run_with_its_reason_and_it_can_be_resumed_later": (_ROOT, _MOUNT),
    f"{_FAULTS}test_a_run_can_be_stopped_while_the_disk_is_full": (_ROOT, _MOUNT),
    f"{_FAULTS}test_a_disk_that_a_program_has_filled_before_it_failed_is_the_reason": (_ROOT, _MOUNT),
    f"{_FAULTS}test_a_disk_with_room_for_little_more_than_the_spec_is_the_reason_of_the_run": (_ROOT, _MOUNT),
    f"{_FAULTS}test_a_disk_that_is_full_at_the_start_loses_nothing_of_the_run": (_ROOT, _MOUNT),
    f"{_SYSTEM}test_a_machine_without_proc_starts_nothing_whose_processes_it_could_not_find": (_MOUNT,),
    f"{_SYSTEM}test_a_machine_without_a_loopback_interface_runs_what_needs_none": (_NAMESPACE,),
    f"{_WHEEL}test_the_wheel_has_the_package_and_the_project_and_nothing_else": (_GIT,),
    "tests/test_architecture.py::test_the_top_folder_has_nothing_else": (_GIT,),
}


def fail_unlisted(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn the skip of a test, or of a whole file, that is not in the list into a failure."""
    if not report.skipped or hasattr(report, "wasxfail") or not isinstance(report.longrepr, tuple):
        return
    reason = str(report.longrepr[2]).removeprefix("Skipped: ")
    if reason not in MAY_BE_SKIPPED.get(report.nodeid, ()):
        report.outcome = "failed"
        report.longrepr = f"skipped, which tests/skips.py does not list: {report.nodeid}: {reason}"
