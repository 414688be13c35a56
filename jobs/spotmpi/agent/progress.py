"""What an attempt has reported so far: iterations, checkpoints, other output.

Programs report in lines of `protocol`, by a pattern of their spec, or in a well-known form that is recognized.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from . import protocol
from .launcher_output import Line
from .plan import COORDINATOR, Member

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

Values = Dict[str, Any]
Report = Tuple[str, Values]

_OF_FUNCTIONS = (protocol.STREAM, protocol.CHECKPOINT, protocol.RESUMED)  # which print them within any program
_MAX_ROWS = 300  # characters of the rows of a batch in a reason
_MAX_MATCHED = 4096  # characters of a line that a pattern is tried on: many take quadratic time


class Form(NamedTuple):
    """A form of progress: *pattern* finds the number ``n``, and ``total`` and ``epoch`` where it has them."""

    name: str
    pattern: str
    same_words: bool = False  # lines that differ in more than numbers are not progress
    needs_scalar: bool = False
    counts_lines: bool = False  # n only shows that it grows: the iteration is the number of the line
    looks_back: bool = False  # a smaller number is an earlier one once more, unless it is the first


FORMS = (
    Form("reports of fairseq", r'\{"epoch": \d.*"num_updates": "(?P<n>\d+)"'),
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
    Form("a Rich progress bar", r"(?:[━╸╺]{3,}|[━╸─]{12}) +(?P<n>\d+)/(?P<total>\d+)\b"),  # 12: that of Ultralytics
    Form("tables of Stable-Baselines3", r"^\| +total_timesteps +\| (?P<n>\d+)\b"),  # those of all of its algorithms
    Form("a Chainer progress bar", r"^ *(?P<n>\d+) iter, \d+ epoch / "),
    Form(
        "rounds of boosting",  # of XGBoost and LightGBM, or of CatBoost; early stopping prints the best one again
        r"^(?:\[(?=\d+\]\t[^\t:]+: ?(?:%s|nan|-?inf))|(?=\d+:\t.*\tremaining: ))(?P<n>\d+)\b" % _NUMBER,
        looks_back=True,
    ),
    Form(
        "numbers of steps",  # their plural as DeepSpeed's engine of pipelines prints it
        r"(?i)(?<![a-z])(?:step|steps(?=: \d+ loss)|iteration|iter|batch)%s%s%s" % (_TRAIN, _LABEL, _COUNT),
        same_words=True,
    ),
    Form(
        "positions in an epoch",
        r"(?i)(?<![a-z])epoch%s\W{1,3}(?P<epoch>\d+)(?:/\d+)?\W{1,6}(?P<n>\d+) */ *(?P<total>\d+)\b" % _TRAIN,
        same_words=True,
    ),
    Form(
        "positions in brackets",  # of an epoch before a comma, as in PyTorch's tutorials; or as JAX's clu logs steps
        r"\[ *(?:\d+, *(?=\d+ *\])|(?=\d+ */)|(?=\d+\](?: collection=\w+)? [\w/]+=))(?P<n>\d+)"
        r"(?: */ *(?P<total>\d+)(?: *\( *\d+%\))?)? *\]",
        same_words=True,
        needs_scalar=True,
    ),
    Form("numbers of epochs", r"(?i)(?<![a-z])epoch%s%s%s" % (_TRAIN, _LABEL, _COUNT), same_words=True),
)

_EPOCH = r"(?i)epoch\W{0,4}(\d+)"
# In front of a number: work other than training, which is counted as well.
_OTHER_WORK = (
    r"(?i)(?<![a-z])(?:eval|val|test|sanity|predict|infer|warm|download|upload|load|map\b|filter|token|extract|fetch"
    r"|generat|sav|copy|scan|cach)"
)
_SCALAR = (
    r"(?i)(?<![\w/@.-])(?P<name>(?:(?:train|training|val|valid|validation|test|eval|lm)[ /-])?[\w/]{0,40}?"
    r"(?:loss|acc|accuracy|lr|learning[_ ]rate|grad[_ ]norm|ppl|perplexity|error|reward|auc|mse|mae)(?:[_@]\w{1,20})?)"
    r"['\"]?(?: *[:=] *| is |\s+)['\"]?(?P<value>%s|nan|[-+]?inf)(?!\w)" % _NUMBER
)
_NUMBERS = r"(?i)%s|\bnan\b|\binf\b" % _NUMBER
_WORDS = r"(?i)[a-z_]+"
_CONTROLS = r"\x1b\[[0-9;?]*[A-Za-z]|[\b]"
_COUNTS = ("epoch", "iteration", "iter", "step", "batch")  # columns of a table that count
_SPACY = "E    #     "  # in the header of spaCy's table of training
_HINTS = (
    *("step", "iter", "epoch", "batch", "it/s", "s/it", "━", "] -", ".] ", "=]", "] loss", "]\t", "\tremaining"),
    _SPACY.lower(),
)


class Recognizer:
    """Reads the lines of rank 0, and takes the first form whose numbers grow over several of them.

    ``form`` is that form and ``line`` an example, None until then.
    """

    def __init__(self) -> None:
        self.form: Form | None = None
        self.line: str | None = None
        self._counters: dict[str, _Counter] = {}  # of each form, the lines that may be progress
        self._columns: list[_Column] = []  # of the table whose header came last

    def read(self, text: str, now: float) -> list[Metric]:
        """The metrics that *text* reports, and with the line that shows the form those of the lines before it."""
        if not self._columns and not _may_be_progress(text):
            return []
        text = re.sub(_CONTROLS, "", text[:_MAX_LENGTH])
        found = self._find(_labelled(text, self._columns) or text)
        if not found:
            self._columns = _columns(text) or self._columns
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

    def _find(self, text: str) -> _ProgressLine | None:
        """The progress in *text*: of the form that was taken, else of the first one that matches."""
        for form in (self.form,) if self.form else FORMS:
            match = re.search(form.pattern, text)
            if match and not re.search(_OTHER_WORK, text[: match.start("n")]):
                found = _ProgressLine(form, text, match)
                valid = found.total is None or found.n <= found.total
                return found if valid and (not form.needs_scalar or re.search(_SCALAR, text)) else None
        return None


class _Column(NamedTuple):
    """A column of a table, as Chainer's PrintReport, skorch and fastai print them: where it begins, and its name."""

    start: int
    name: str


def _columns(text: str) -> List[_Column]:
    """The columns of which a line is the header; none where that does not name what counts."""
    if _SPACY in text:  # an epoch, a step, and losses such as "LOSS TOK2VEC"
        text = re.sub(r"LOSS (\w+)\.*", r"\1_LOSS", text.replace(_SPACY, "epoch  step"))
    columns = [_Column(match.start(), match.group()) for match in re.finditer(r"\S+(?: \S+)*", text)]
    are_names = len(columns) > 1 and all(re.match(r"[A-Za-z]", each.name) for each in columns)
    return columns if are_names and any(each.name.lower() in _COUNTS for each in columns) else []


def _labelled(text: str, columns: List[_Column]) -> Optional[str]:
    """The row of a table with the names of its columns in front of its values, those that count first; else None."""
    values = list(re.finditer(r"\S+", text))
    if not 2 <= len(values) <= len(columns) or not text.lstrip()[0].isdigit():
        return None
    to_the_left = [[column for column in columns if column.start <= value.start()] for value in values]
    if len(values) == len(columns):
        row = {columns[place]: value for place, value in enumerate(values)}
    elif all(to_the_left):  # where a column is blank, which Chainer aligns to the left
        row = {to_the_left[place][-1]: value for place, value in enumerate(values)}
    else:
        return None
    return " ".join(
        "%s %s" % (each.name, row[each].group() if each in row else "-")
        for each in sorted(columns, key=lambda column: column.name.lower() not in _COUNTS)
    )


class _ProgressLine:
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

    def __init__(self, first: _ProgressLine) -> None:
        self.metrics: List[Metric] = []
        self._first = first
        self._last: Optional[_ProgressLine] = None
        self._base = 0
        self._begin = first.n  # of the current epoch
        self._lines = 0

    def counts(self, found: _ProgressLine) -> bool:
        """Whether *found*, before the form is taken, goes on with these lines."""
        last = self._last
        if last is None or found.words != self._first.words or not self._alike(found):
            return False
        return (found.epoch, found.n) >= (last.epoch, last.n)

    def _alike(self, found: _ProgressLine) -> bool:
        return found.total == self._first.total and found.label == self._first.label

    def advance(self, found: _ProgressLine) -> int | None:
        """The iteration of *found*; None for a line of another kind, and for one that repeats the last."""
        last, form = self._last, found.form
        if not self._alike(found) or (last and (found.n, found.epoch) == (last.n, last.epoch)):
            return None
        if last and form.looks_back and self._begin < found.n < last.n:
            return None
        if last and (found.n < last.n or found.epoch > last.epoch) and not form.counts_lines:
            if found.n <= last.n:  # else the numbers go on across epochs
                self._base += int(found.total or last.n + (not self._begin))
            self._begin = found.n
        self._last = found
        self._lines += 1
        return self._lines if form.counts_lines else self._base + int(found.n)


class Progress:
    """Follows the lines of one attempt.

    *pattern* is a regular expression for programs that print in a format of their own; it needs a group ``iteration``.
    Without one, *recognizer* reads well-known forms, until the program reports in protocol lines.
    """

    def __init__(self, now: float, pattern: str | None = None, recognizer: Recognizer | None = None) -> None:
        self.alive = False  # has printed anything
        self.last_progress = now
        self.iteration: int | None = None
        self.first_iteration: int | None = None
        self.first_iteration_time: float | None = None  # Unix seconds; whoever has the clock of the record sets it
        self.first_iteration_elapsed: float | None = (
            None  # when the first iteration was reported, as `Clock.elapsed` counts
        )
        self.resumed: int | None = None
        self.checkpoint: int | None = None
        self.notice_checkpoints = 0
        self.context: Values = {}
        self.result: Values = {}
        self.fatal: str | None = None
        self.stream_used = False  # a rank has taken a batch, or there was none to take
        self.pending: dict[int, tuple[float, Values]] = {}  # of ranks that wait for a batch: since when, and for which
        self._last_iteration: int | None = None  # that a line of text has; of a counter that begins anew it goes back
        self._before_output = now  # last_progress before the output that is being read
        self.earlier: list[Metric] = []  # those that the last report came with: when they arrived, and their values
        self.from_text = False  # whether the last line that was read is the program's own text, not one of `protocol`
        self.matched: str | None = None  # the first line of output in which the pattern found an iteration
        self._pattern = re.compile(pattern) if pattern else None
        self._recognizer = None if pattern else recognizer

    @property
    def recognized(self) -> tuple[str, str] | None:
        """The name of the form that was recognized and a line of it, or None."""
        recognizer = self._recognizer
        return (recognizer.form.name, str(recognizer.line)) if recognizer and recognizer.form else None

    def output_received(self, now: float) -> None:
        """Note that output came, be it half a line: it is progress as long as no iteration was reported.

        A program whose form was recognized did not say that only iterations are progress, so all its output is.
        """
        self.alive = True
        if self.iteration is None or self.recognized:
            self._before_output, self.last_progress = self.last_progress, now

    def read(self, member: Member, line: Line, now: float) -> Report | None:
        """The (kind, values) that *line* of *member* reports, or None for plain output; it counts here."""
        return self._count_report(self._parse(member, line, now), now)

    def _count_report(self, report: Report | None, now: float) -> Report | None:
        """Count what a line reports, or that it reports nothing; returns it."""
        if report is None:
            if self.iteration is None:
                self._before_output = self.last_progress = now
            return None
        kind, values = report
        getattr(self, "_" + kind)(values, now)
        return report

    def read_state(self, member: Member, line: Line, now: float) -> Report | None:
        """What `LineSplitter.states` of rank 0 reports, by the pattern or in a form that is recognized."""
        if member != COORDINATOR or line.rank or not (self._pattern or self._recognizer):
            return None
        return self._count_report(self._parse(member, line._replace(stream="e"), now, is_output=False), now)

    def _parse(self, member: Member, line: Line, now: float, is_output: bool = True) -> Report | None:
        self.earlier = []
        report = protocol.decode(line.text) if line.stream == "o" else None
        self.from_text = not report
        if report:
            self._take_protocol(report[0])
            return report
        if member != COORDINATOR or line.rank:
            return None
        values = self._match(self._pattern, line.text[:_MAX_MATCHED]) if self._pattern else self._recognize(line, now)
        if values and self._pattern and is_output and self.matched is None:
            self.matched = line.text[:_MAX_LENGTH].strip()
        before = self._last_iteration
        if not values or values["iteration"] == before:
            return None  # where the launcher does not tag ranks, every rank prints the same one: the first counts
        self._last_iteration = values["iteration"]
        if before is not None and before < values["iteration"]:
            self.last_progress = now
        return protocol.METRIC, values

    def _take_protocol(self, kind: str) -> None:
        """Recognize nothing more, since the program reports by itself; lines of our functions are not its own."""
        if kind not in _OF_FUNCTIONS and self._recognizer:
            if self.recognized:
                self.iteration = self.first_iteration = self.first_iteration_time = self.first_iteration_elapsed = None
            self._recognizer = None

    def _recognize(self, line: Line, now: float) -> Values | None:
        metrics = self._recognizer.read(line.text, now) if self._recognizer else []
        self.earlier = metrics[:-1]
        for _, values in self.earlier:
            self._metric(values, now)
        return metrics[-1][1] if metrics else None

    def _match(self, pattern: re.Pattern[str], line: str) -> Values | None:
        match = pattern.search(line)
        if not match:
            return None
        values = {name: _number(text) for name, text in match.groupdict().items() if text is not None}
        iteration = values.get("iteration")
        metric = {**values, "iteration": int(iteration)} if isinstance(iteration, (int, float)) else {}
        return metric if protocol.valid(protocol.METRIC, metric) else None

    def _metric(self, values: Values, now: float) -> None:
        iteration = values.get("iteration")
        if isinstance(iteration, int) and (self.iteration is None or iteration > self.iteration):
            if self.first_iteration is None:
                self.first_iteration = iteration - max(len(values.get("seconds") or []), 1) + 1
            self.iteration = iteration
            self.last_progress = now

    def _context(self, values: Values, now: float) -> None:
        self.context = values
        self.last_progress = now

    def _resumed(self, values: Values, now: float) -> None:
        self.resumed = values.get("iteration")
        self.last_progress = now

    def _evaluation(self, values: Values, now: float) -> None:
        self.last_progress = now

    def _checkpoint(self, values: Values, now: float) -> None:
        self.checkpoint = values.get("iteration")
        self.last_progress = now
        if values.get("reason") == "notice":
            self.notice_checkpoints += 1

    def _result(self, values: Values, now: float) -> None:
        self.result = values
        self.last_progress = now

    def _stream(self, values: Values, now: float) -> None:
        self.stream_used = True
        rank, pending = int(values["rank"]), values.get("pending")
        if not isinstance(pending, dict):
            self.pending.pop(rank, None)
            self.last_progress = now
            return
        seconds = pending.get("seconds")
        self.pending[rank] = (now - seconds if isinstance(seconds, (int, float)) else now, pending)
        if self.iteration is None:
            self.last_progress = self._before_output

    def longest_wait(self, now: float) -> str | None:
        """The batch of a stream that holds up a rank the longest, as part of a message; None if none does."""
        if not self.pending:
            return None
        rank, (since, values) = min(self.pending.items(), key=lambda item: item[1][0])
        rows = str(values.get("rows"))[:_MAX_ROWS]
        worker, batch = values.get("worker"), "batch %s (%s)" % (values.get("batch"), rows)
        if worker is None:
            return "rank %d has waited %d s for %s" % (rank, now - since, batch)
        return "%s has spent %d s on %s, and rank %d waits" % (worker, now - since, batch, rank)

    def _fatal(self, values: Values, now: float) -> None:
        reason = values.get("reason")
        self.fatal = (
            reason if reason and isinstance(reason, str) else "the program reported a fatal error without a reason"
        )


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


def _number(text: str) -> int | float | str | None:
    """The number or text in *text*; None for what JSON has no number for, such as nan."""
    try:
        return protocol.number(text)
    except ValueError:
        return text
