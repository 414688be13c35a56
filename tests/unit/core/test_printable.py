"""Texts of programs and other users: harmless on a terminal whatever they are, and never an error."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from spotmpi.core import wording
from spotmpi.core.redaction import _secrets as known
from spotmpi.core.redaction import redacted, remember

TEXTS = st.text(st.characters(exclude_categories=())) | st.text(
    "ab\x1b[0;31m\n\r\t\x00\x9b\u202e\ud800\u200d", max_size=50
)
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def test_a_size_has_the_unit_in_which_it_is_not_zero() -> None:
    sizes = {0: "0.0 kB", 22_112: "22.1 kB", 99_999: "100.0 kB", 100_000: "0.1 MB", 2_500_000_000: "2.50 GB"}
    assert {size: wording.format_size(size) for size in sizes} == sizes


@given(TEXTS, st.integers(3, 60))
@example("\x1b]0;title\x07", 1000)
def test_a_printable_text_is_one_line_without_control_characters(text: str, longest: int) -> None:
    shown = wording.printable(text, longest)
    assert not UNSAFE.search(shown) and len(shown) <= 10 * longest
    shown.encode()
    if text.isprintable() and len(text) <= longest:
        assert shown == text


@given(TEXTS)
def test_output_keeps_colours_and_tabs_and_no_other_control_character(text: str) -> None:
    shown = wording.printable_output(text)
    assert not UNSAFE.search(re.sub(r"\x1b\[[0-9;:]{0,40}m|\t", "", shown))
    assert "\x1b[" not in shown or shown.endswith("\x1b[0m"), "a colour does not go on to the next line"
    lines = wording.printable_lines(text)
    assert not UNSAFE.search(re.sub(r"[\t\n]", "", lines)) and lines.count("\n") == text.count("\n")


def test_a_row_of_chainers_table_is_shown_without_what_erases_the_line_before_it() -> None:
    assert wording.printable_output("\x1b[J1           600  ") == "1           600  "
    assert wording.printable_output("\x1b[2K\x1b[4A 50%") == "\\x1b[4A 50%"


SECRETS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=30)


@given(st.lists(SECRETS, min_size=1, max_size=3), st.lists(TEXTS, min_size=2, max_size=4))
def test_no_remembered_secret_is_left_wherever_it_stands(secrets: list[str], texts: list[str]) -> None:
    before = set(known)
    try:
        remember(*secrets)
        shown = redacted(secrets[0].join(texts) + secrets[-1])
        assert not any(secret in shown for secret in secrets)
    finally:
        known.intersection_update(before)


KEYS = st.sampled_from(
    ["password", "AWS_SECRET_ACCESS_KEY", "X-Amz-Signature", "session_token", "x-amz-security-token"]
)
VALUES = st.text(st.sampled_from("abcXYZ0189/+=%-_.~"), min_size=1, max_size=40)


@given(KEYS, st.sampled_from(["=", ": ", '": "', "': '", " = ", ":"]), VALUES, TEXTS)
def test_the_value_of_a_secret_with_a_name_is_removed(key: str, between: str, value: str, before: str) -> None:
    shown = redacted(f"{before} {key}{between}{value}")
    assert shown.endswith("[redacted]") and redacted(shown) == shown
