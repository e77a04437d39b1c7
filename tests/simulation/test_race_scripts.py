"""Races as texts (`races/`, see `stage.py`), which show the schedule of messages and its outcome.

The outcome is written below each command. After a change of the protocol that is meant to change outcomes,
`RACES=rewrite pytest tests/simulation/test_race_scripts.py` writes them anew; then read the difference.
"""

import os
from pathlib import Path

import pytest
from stage import play

_RACES = sorted((Path(__file__).parent / "races").glob("*.txt"))


@pytest.mark.parametrize("path", _RACES, ids=[path.stem for path in _RACES])
def test_a_race_comes_out_as_it_is_written(path: Path) -> None:
    written = path.read_text()
    played = play(written)
    if os.environ.get("RACES") == "rewrite":
        path.write_text(played)
    else:
        assert played == written


def test_what_is_written_below_a_command_is_compared() -> None:
    text = play("pes 1\nsubmit 0 job 1\nstarted 0\nanswer 0\nshow\n")
    assert "  0: StartWorker worker 0 job 1 index 0\n" in text
    assert "  0: JobEnded job 1 outcome result result of PE 0\n" in text
    assert text.endswith("show\n  0: idle\n")
    assert play(text) == text
    assert play(text.replace("index 0", "index 7")) == text


def test_a_message_that_is_not_there_is_a_mistake_in_the_text() -> None:
    with pytest.raises(AssertionError, match="nothing is on its way from 1 to 0"):
        play("pes 2\ndeliver 1->0 Offer\n")
