"""How many files three stories run through: `scripts/stories` measures it, and docs/architecture.md has the limits."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts import stories
from scripts.story import tracer


@pytest.mark.extensive("profiles a study, for those who change files")
@pytest.mark.parametrize("name", stories.STORIES)
def test_no_story_runs_through_more_files_than_the_guide_says(name: str) -> None:
    story = stories.STORIES[name]
    found = stories.profile(story)
    assert found.keys() == {*story.processes, "all"}, "a process that is not traced has no files"
    files = found["all"].files
    assert story.goal / 2 < len(files) <= stories.limit(story), (
        f"{name}: {', '.join(files)}; shorten it, or run ./scripts/stories --update and give the reason in the commit"
    )


def test_each_function_is_counted_once_and_switches_are_steps_to_another_file() -> None:
    first, again, second, third = ("a.py", "f:1"), ("a.py", "g:9"), ("b.py", "f:1"), ("c.py", "h:2")
    logs = [("client", [first, second, again]), ("agent", [first, third])]
    found = stories.counts(logs)
    assert found["client"] == stories.Count(("a.py", "b.py"), 3, 2)
    assert found["agent"] == stories.Count(("a.py", "c.py"), 2, 1)
    assert found["all"] == stories.Count(("a.py", "b.py", "c.py"), 4, 3)


def test_the_processes_of_the_package_are_traced_and_no_others() -> None:
    python, rank_wrapper = sys.executable, f"{tracer.PACKAGE}agent/rank_wrapper.py"
    trace = [tracer.__file__, "logs"]
    agent = [python, "-S", "-E", "-m", "spotmpi.agent", "folder"]
    assert tracer.traced(agent, "logs") == [python, "-S", "-E", *trace, "spotmpi.agent", "folder"]
    rank = [python, "-I", "-S", rank_wrapper, "--env", "file"]
    assert tracer.traced(rank, "logs") == [python, "-I", "-S", *trace, rank_wrapper, "--env", "file"]
    for other in (["git", "-m", "spotmpi.x"], [python, "-c", "pass"], [python, "-m", "pip"], [python], "sh"):
        assert tracer.traced(other, "logs") == other


def test_the_numbers_are_written_into_their_rows_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    story = stories.STORIES["run"]
    guide = tmp_path / "guide.md"
    other = f"| {stories.STORIES['study'].about} | 80 | 9 | 9 | 45 |"
    guide.write_text(f"# A table\n\n| {story.about} | 1 | 2 | 3 | 30 |\n{other}\n")
    monkeypatch.setattr(stories, "GUIDE", guide)
    stories.update({"run": {"all": stories.Count(("a.py", "b.py"), 5, 1)}})
    assert guide.read_text() == f"# A table\n\n| {story.about} | 2 | 5 | 1 | 30 |\n{other}\n"
    assert stories.limit(story) == 2
