"""What a stream raises."""

from __future__ import annotations


class StreamError(Exception):
    """A stream cannot continue, and a retry would not help; the message has batch, source and remedy."""


class SourceError(Exception):
    """The storage of a source does not answer; a new attempt of the run may succeed."""


class StreamLost(Exception):
    """The scheduler or all workers of a stream are lost; a new attempt of the run continues from its checkpoint."""
