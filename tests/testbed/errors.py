"""What the testbed raises when a part of it does not come up."""

from __future__ import annotations


class TestbedError(Exception):
    """A part of the test cluster that failed, with the reason and the end of its log."""

    __test__ = False
