"""Recognizes the progress of programs that print it in a well-known form, where a spec has no pattern for it."""

from __future__ import annotations

import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from . import protocol

Metric = Tuple[float, Dict[str, Any]]  # when its line was read, and its values

REMEDY = (
    "set metrics.pattern in the spec to a regular expression with the group (?P<iteration>...), or print lines such as "
    '{"spotmpi": "metric", "iteration": 12, "loss": 0.5}'
)

LINES = 3  # with growing numbers, before a form is taken
_MAX_LENGTH = 1000  # characters of a line that are looked at
_MAX_SCALARS = 20  # of one line

_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
_COUNT = r"(?P<n>\d+)(?: *(?:/|of) *(?P<total>\d+))?(?![\w/]|[.,]\d)"
_TRAIN = r"(?:\(train\))?"  # as mmengine prints it
_LABEL = r"['\"]?[ \t]*[:=#\[(]*[ \t]*"  # between a word and its number


# Patterns are compiled where they are used, which Python remembers: a start does not wait for them.


class Form(NamedTuple):
    """A form of progress: *pattern* finds the number ``n``, and ``total`` and ``epoch`` where it has them."""

    name: str
    pattern: str
    same_words: bool = False  # lines that differ in more than numbers are not progress
    needs_scalar: bool = False
    counts_lines: bool = False  # n only shows that it grows: the iteration is the number of the line


FORMS = (
    Form(
        "reports of the Hugging Face Trainer, each counted as an iteration",
        r"\{(?=.*['\"](?:loss|learning_rate)['\"]:).*['\"]epoch['\"]: *['\"]?(?P<n>%s)" % _NUMBER,
        counts_lines=True,
    ),
    Form(
        "a tqdm progress bar",  # and that of Lightning
        r"\d%\|[^|]*\| *(?P<n>\d+)/(?P<total>\d+) \[[^\]]*"
        r"[\d?] ?(?:(?:it|batch|batches|step|steps)/s|s/ ?(?:it|batch|batches|step|steps))\b",
    ),
    Form("a Keras progress bar", r"^\s*(?P<n>\d+)/(?P<total>\d+) +(?:\[[=>.]+\]|[━╸╺]+)"),
    Form("a Rich progress bar", r"[━╸╺]{3,} +(?P<n>\d+)/(?P<total>\d+)\b"),
    Form(
        "numbers of steps",
        r"(?i)(?<![a-z])(?:step|iteration|iter|batch)%s%s%s" % (_TRAIN, _LABEL, _COUNT),
        same_words=True,
    ),
    Form(
        "positions in an epoch",
        r"(?i)(?<![a-z])epoch%s\W{1,3}(?P<epoch>\d+)(?:/\d+)?\W{1,6}(?P<n>\d+) */ *(?P<total>\d+)\b" % _TRAIN,
        same_words=True,
    ),
    Form("positions in brackets", r"\[ *(?P<n>\d+) */ *(?P<total>\d+) *\]", same_words=True, needs_scalar=True),
    Form("numbers of epochs", r"(?i)(?<![a-z])epoch%s%s%s" % (_TRAIN, _LABEL, _COUNT), same_words=True),
)

_EPOCH = r"(?i)epoch\W{0,4}(\d+)"
# In front of a number: work other than training, which is counted as well.
_OTHER_WORK = (
    r"(?i)(?<![a-z])(?:eval|val|test|sanity|predict|infer|warm|download|upload|load|map\b|filter|token|extract|fetch"
    r"|generat|sav|copy)"
)
_SCALAR = (
    r"(?i)(?<![\w/@.-])(?P<name>(?:(?:train|training|val|valid|validation|test|eval|lm)[ /-])?[\w/]{0,40}?"
    r"(?:loss|acc|accuracy|lr|learning[_ ]rate|grad[_ ]norm|ppl|perplexity|error|reward|auc|mse|mae)(?:[_@]\w{1,20})?)"
    r"['\"]?(?: *[:=] *| is |\s+)['\"]?(?P<value>%s|nan|[-+]?inf)(?!\w)" % _NUMBER
)
_NUMBERS = r"(?i)%s|\bnan\b|\binf\b" % _NUMBER
_WORDS = r"(?i)[a-z_]+"
_CONTROLS = r"\x1b\[[0-9;?]*[A-Za-z]|[\b]"
_HINTS = ("step", "iter", "epoch", "batch", "it/s", "s/it", "━", "] -", ".] ", "=]")


class Recognizer:
    """Reads the lines of rank 0, and takes the first form whose numbers grow over several of them.

    ``form`` is that form and ``line`` an example, None until then.
    """

    def __init__(self) -> None:
        self.form: Form | None = None
        self.line: str | None = None
        self._counters: dict[str, _Counter] = {}  # of each form, the lines that may be progress

    def read(self, text: str, now: float) -> list[Metric]:
        """The metrics that *text* reports, and with the line that shows the form those of the lines before it."""
        found = self._find(re.sub(_CONTROLS, "", text[:_MAX_LENGTH])) if _may_be_progress(text) else None
        if not found:
            return []
        counter = self._counters.get(found.form.name)
        if counter is None or not (counter.counts(found) or self.form):
            counter = self._counters[found.form.name] = _Counter(found)
        iteration = counter.advance(found)
        if iteration is None:
            return []
        metric = now, {"iteration": iteration, **_scalars(found.text)}
        if self.form:
            return [metric]
        counter.metrics.append(metric)
        if len(counter.metrics) < LINES:
            return []
        self.form, self.line = found.form, found.text.strip()
        self._counters = {found.form.name: counter}
        return counter.metrics

    def _find(self, text: str) -> _Found | None:
        """The progress in *text*: of the form that was taken, else of the first one that matches."""
        for form in (self.form,) if self.form else FORMS:
            match = re.search(form.pattern, text)
            if match and not re.search(_OTHER_WORK, text[: match.start("n")]):
                found = _Found(form, text, match)
                valid = found.total is None or found.n <= found.total
                return found if valid and (not form.needs_scalar or re.search(_SCALAR, text)) else None
        return None


class _Found:
    """A line with progress of a form."""

    def __init__(self, form: Form, text: str, match: re.Match[str]) -> None:
        groups = match.groupdict()
        self.form = form
        self.text = text
        self.n = float(groups["n"]) if form.counts_lines else int(groups["n"])
        self.total = int(groups["total"]) if groups.get("total") else None
        epoch = re.search(_EPOCH, text) if form.name != FORMS[-1].name else None
        self.epoch = int(epoch.group(1)) if epoch else 0
        # What lines of one counter have in common.
        self.label = re.findall(_WORDS, text[: match.start("n")])[-1:]
        self.words = re.findall(_WORDS, re.sub(_NUMBERS, "", text)) if form.same_words else []


class _Counter:
    """Counts the iterations of one kind of line, across epochs that begin their numbers anew."""

    def __init__(self, first: _Found) -> None:
        self.metrics: List[Metric] = []
        self._first = first
        self._last: Optional[_Found] = None
        self._base = 0
        self._begin = first.n  # of the current epoch
        self._lines = 0

    def counts(self, found: _Found) -> bool:
        """Whether *found*, before the form is taken, goes on with these lines."""
        last = self._last
        if last is None or found.words != self._first.words or not self._alike(found):
            return False
        return (found.epoch, found.n) >= (last.epoch, last.n)

    def _alike(self, found: _Found) -> bool:
        return found.total == self._first.total and found.label == self._first.label

    def advance(self, found: _Found) -> int | None:
        """The iteration of *found*; None for a line of another kind, and for one that repeats the last."""
        last, form = self._last, found.form
        if not self._alike(found) or (last and (found.n, found.epoch) == (last.n, last.epoch)):
            return None
        if last and (found.n < last.n or found.epoch > last.epoch) and not form.counts_lines:
            if found.n <= last.n:  # else the numbers go on across epochs
                self._base += int(found.total or last.n + (not self._begin))
            self._begin = found.n
        self._last = found
        self._lines += 1
        return self._lines if form.counts_lines else self._base + int(found.n)


def _may_be_progress(text: str) -> bool:
    """Whether a line needs a closer look; most do not."""
    lowered = text[:_MAX_LENGTH].lower()
    return any(hint in lowered for hint in _HINTS) or ("/" in lowered and "[" in lowered)


def _scalars(text: str) -> Dict[str, Any]:
    """The well-known scalars of a line, by names such as ``loss`` and ``val_accuracy``."""
    scalars: Dict[str, Any] = {}
    for match in re.finditer(_SCALAR, text):
        name = re.sub(r"\W+", "_", match.group("name").lower()).strip("_")
        if name not in protocol.RESERVED_KEYS and len(scalars) < _MAX_SCALARS:
            scalars.setdefault(name, protocol.number(match.group("value")))
    return scalars
