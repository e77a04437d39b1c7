"""A replay of a desk's recorded calls gives the same orders; otherwise the replay names the first different
line.
"""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from seeds import seeds
from test_desks import Played

from mallob_py import __version__
from mallob_py.protocol.config import Config
from mallob_py.protocol.effects import JobRests
from mallob_py.protocol.job_terms import JobTerms
from mallob_py.protocol.node import Node
from mallob_py.protocol.rank_book import Origin
from mallob_py.runtime.stimulus_log import LineLog, StimulusLog
from mallob_py.service import JobFileError, desk_machine
from mallob_py.service.desk_log import CALLS, SUFFIX, DeskHead, DeskLog, logged_machine
from mallob_py.service.desk_machine import DeskMachine, DeskSetting, Hands
from mallob_py.service.jobs.job_file import JobFile
from mallob_py.service.jobs.line import Queue
from mallob_py.service.jobs.live import LiveJob
from mallob_py.service.jobs.users import UserBook, UserRule, UserRules
from mallob_py.simulation import desks
from mallob_py.simulation.desks import DeskPlan
from mallob_py.simulation.plan import draw_plan, with_changes, with_desks
from mallob_py.simulation.replay import Difference, ReplayError, replay, replay_log
from mallob_py.simulation.scenario import Scenario

ORDERS = {name for name in vars(Hands) if name[0] != "_"}
ONE_AT_A_TIME = UserRules(UserRule(active_jobs=1))


def complain(text: str) -> None:
    raise AssertionError(text)


class Logged:
    """A desk's machine for one PE, with its log; its orders are not carried out."""

    def __init__(self, folder: Path, **setting: Any) -> None:
        self.hands: Any = Mock(spec=[*ORDERS])
        self.hands.now.return_value = 0.0
        self.hands.is_suspect.return_value = False
        self.hands.replied.return_value = None
        for name in ("begin", "end_unsubmitted", "interrupt", "note_work", "set_terms", "tell_clients"):
            getattr(self.hands, name).return_value = None
        self.path = folder / f"0.0{SUFFIX}"
        desk = DeskSetting(1, 60.0, **setting)
        self.file = LineLog(self.path, DeskHead(client=0, desk=desk, version=__version__), complain)
        self.machine = DeskLog(self.hands, desk, self.file).machine

    def take(self, job: int, user: str = "u", after: tuple[str, ...] = ()) -> LiveJob:
        file = JobFile(
            *(user, f"n{job}", "SIM", ("/f",), None, JobTerms(), 0.0, after, (), False),
            *("", False, (), {"key": 1}, (), {"name": b'"x"'}),
        )
        live = LiveJob(job, file, 0.0, 0.0)
        self.machine.admit(live, "")
        return live

    def lines(self) -> list[str]:
        self.file.flush()
        return self.path.read_text().splitlines()


def of(lines: list[str], **fields: Any) -> int:
    """Return the number of the only line with these fields."""
    (number,) = (number for number, line in enumerate(lines, 1) if fields.items() <= json.loads(line).items())
    return number


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[LineLog]:
    """Return a list to which the logs of all desks in the test's simulations are added."""
    logs: list[LineLog] = []

    def logged(hands: Hands, desk: DeskSetting) -> DeskMachine:
        head = DeskHead(client=len(logs), desk=desk, version=__version__)
        logs.append(LineLog(tmp_path / f"{len(logs)}{SUFFIX}", head, complain))
        return DeskLog(hands, desk, logs[-1]).machine

    monkeypatch.setattr(desks, "DeskMachine", logged)
    return logs


@pytest.mark.parametrize("seed", seeds(12))
def test_a_random_life_of_desks_comes_to_the_same_orders_again(
    seed: int, life: list[LineLog], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Scenario(with_changes(with_desks(draw_plan(7000 + seed)))).run()
    for log in life:
        log.flush()
    assert replay(tmp_path) == 0
    assert capsys.readouterr().out.count(" stimuli, the same effects") == len(life) > 0


def turns(logs: list[LineLog]) -> list[str]:
    """Return the log of a desk that gives up one job at a time, so that the next one gets its turn."""
    played = Played(2, DeskPlan(window=3, residents=0))
    played.play_until_one_is_given_up(range(1, 31))
    played.cluster.interrupt(1)
    played.play(1.0)
    logs[0].flush()
    return logs[0].path.read_text().splitlines(keepends=True)


def test_lives_know_every_call_and_order(life: list[LineLog]) -> None:
    lines = turns(life)
    for seed in (7001, 7006, 7007, 7008):
        life.clear()
        Scenario(with_changes(with_desks(draw_plan(seed)))).run()
        for log in life:
            log.flush()
            lines += log.path.read_text().splitlines()
    names = {(line["line"], line["name"]) for line in map(json.loads, lines) if "name" in line}
    assert {name for line, name in names if line == "call"} == CALLS.keys() - {"refused"}
    assert {name for line, name in names if line == "order"} == ORDERS - {
        "end_chain_by",
        "end_at_limit",
        "replied",
    }


def test_a_changed_rule_is_found_at_the_first_line_that_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logged = Logged(tmp_path, rules=ONE_AT_A_TIME)
    first, second = logged.take(1), logged.take(2)
    logged.machine.turn(1.0)
    logged.machine.terms(first, False, 1.0)
    logged.machine.turn(2.0)
    logged.machine.answer(first, "result")
    logged.machine.turn(3.0)
    logged.machine.answer(second, "result")
    lines = logged.lines()
    assert replay_log(logged.path) == 8
    monkeypatch.setattr(Queue, "is_full", False)
    found = replay_log(logged.path)
    assert isinstance(found, Difference)
    # The first turn begins both jobs.
    assert found.line == of(lines, name="terms")
    assert "after Call(depth=0, t=0.0, name='turn', args=[1.0]): Order(depth=1, name='begin'" in found.text
    assert "in the log Call(depth=0, t=0.0, name='terms'" in found.text
    assert replay(tmp_path) == 1
    assert f"{logged.path}:{found.line}: at 0.000000 s, after Call" in capsys.readouterr().out


def test_another_value_of_a_call_is_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged = Logged(tmp_path)
    job = logged.take(1)
    logged.machine.turn(0.0)
    logged.machine.terms(job, False, 0.0)
    number = of(logged.lines(), value=[1.0, 0])
    monkeypatch.setattr(UserBook, "_priority", lambda *_: 2.0)
    found = replay_log(logged.path)
    assert isinstance(found, Difference)
    assert (found.line, "value=[2.0, 0]" in found.text.split("in the log")[0]) == (number, True)


def test_an_order_that_is_not_given_any_more_is_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged = Logged(tmp_path)
    logged.take(1)
    logged.machine.turn(0.0)
    number = of(logged.lines(), name="begin")
    monkeypatch.setattr(DeskMachine, "_begin", lambda *_: None)
    found = replay_log(logged.path)
    assert isinstance(found, Difference)
    assert (found.line, "nothing follows" in found.text) == (number, True)


def test_calls_of_the_hands_before_they_return_are_played_within_their_order(tmp_path: Path) -> None:
    """An interrupted job is answered at once; its end ends another job, by a call made before the first
    order returns.
    """
    logged = Logged(tmp_path)
    machine = logged.machine
    logged.take(1), logged.take(2, after=("u.n1",))

    def end(job: LiveJob, now: float) -> None:
        if job.id == 1:
            machine.interrupt("u.n2", 12, now)
        machine.answer(job, "interrupted")

    logged.hands.end_unsubmitted.side_effect = end
    machine.interrupt("u.n1", 11, 1.0)
    lines = logged.lines()
    interrupts = [json.loads(line) for line in lines if '"interrupt"' in line]
    assert [(line["depth"], line["args"]) for line in interrupts] == [
        (0, ["u.n1", 11, 1.0]),
        (2, ["u.n2", 12, 1.0]),
    ]
    assert [json.loads(line)["value"] for line in lines if '"return"' in line] == [[12], [11]]
    assert replay_log(logged.path) == 6
    logged.path.write_text("".join(f"{line}\n" for line in lines if '"u.n2",12' not in line))
    assert isinstance(replay_log(logged.path), Difference)


def test_the_clock_that_ends_a_turn_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged = Logged(tmp_path)
    for job in range(1, 4):
        logged.take(job)
    logged.hands.now.return_value = 10.0
    logged.machine.turn(0.0)
    assert logged.hands.begin.call_count == 1
    logged.hands.now.return_value = 0.0
    logged.machine.turn(11.0)
    logged.lines()
    assert replay_log(logged.path) == 5
    monkeypatch.setattr(desk_machine, "_BEGIN_S", 100.0)
    assert isinstance(replay_log(logged.path), Difference)


def test_answers_of_the_hands_are_given_again(tmp_path: Path) -> None:
    """The answers say whether an unknown job has a reply, and whether a job is suspected."""
    logged = Logged(tmp_path, finished={"u.old": "result"})
    logged.hands.replied.side_effect = lambda identity: "result" if identity == "u.late" else None
    logged.hands.is_suspect.side_effect = lambda job: job == 1
    logged.take(1, after=("u.old", "u.late")), logged.take(2, after=("u.never",))
    logged.machine.turn(0.0)
    logged.machine.turn(1.0)
    assert not logged.hands.begin.called
    lines = logged.lines()
    assert replay_log(logged.path) == 4
    logged.path.write_text("\n".join(lines).replace('"value":true', '"value":false') + "\n")
    found = replay_log(logged.path)
    assert isinstance(found, Difference)
    assert "name='begin'" in found.text


def test_what_a_call_raised_is_raised_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged = Logged(tmp_path)
    logged.take(1)
    logged.machine.refused("u.n9")
    with pytest.raises(JobFileError):
        logged.machine.interrupt("u.n9", 3, 1.0)
    with pytest.raises(JobFileError):
        logged.take(2, after=("u.n2",))
    with pytest.raises(KeyError):
        logged.machine.had_turn(JobRests(7))
    errors = [error for line in logged.lines() if (error := json.loads(line).get("error"))]
    assert [error.split(":")[0] for error in errors] == ["JobFileError", "JobFileError", "KeyError"]
    assert replay_log(logged.path) == 5
    logged.path.write_text(logged.path.read_text().replace("KeyError: 7", "KeyError: 8"))
    found = replay_log(logged.path)
    assert isinstance(found, Difference)
    assert "KeyError: 7" in found.text.split("in the log")[0]


def test_a_circle_of_jobs_is_told_in_the_same_words_by_each_process(tmp_path: Path) -> None:
    """A set of names has a different order in each process."""
    logged = Logged(tmp_path)
    for first in (100, 200, 300):
        others = range(first + 1, first + 30)
        for job in others:
            logged.take(job, after=(f"u.n{first}",))
        way = rf"u\.n{first} -> u\.n{first + 29} -> u\.n{first}$"
        with pytest.raises(JobFileError, match=way):
            logged.take(first, after=tuple(f"u.n{job}" for job in others))


def test_a_log_ends_where_the_hands_fail(tmp_path: Path) -> None:
    logged = Logged(tmp_path)
    logged.take(1)
    logged.hands.begin.side_effect = RuntimeError("the rank ends")
    with pytest.raises(RuntimeError):
        logged.machine.turn(0.0)
    assert json.loads(logged.path.read_text().splitlines()[-1])["name"] == "begin"
    assert replay_log(logged.path) == 2


def test_each_beginning_of_a_log_can_be_played(tmp_path: Path, life: list[LineLog]) -> None:
    """A killed rank leaves an incomplete log."""
    lines, part = turns(life), tmp_path / "part"
    assert len(lines) > 60
    for end in range(1, len(lines), 7):
        part.write_text("".join(lines[:end]))
        assert not isinstance(replay_log(part), Difference), end


@pytest.mark.parametrize(
    ("number", "old", "new", "why"),
    [
        (1, '"pes":1', '"pes":"1"', r":1: no head of a log of stimuli"),
        (2, '"call"', '"gift"', r":2: Invalid value 'gift'"),
        (2, '"admit"', '"gift"', r":2: gift"),
        (3, "[0.0]", "[]", r":3: turn: Expected `array` of length 1"),
    ],
)
def test_a_log_that_cannot_be_played_is_told_with_its_line(
    number: int, old: str, new: str, why: str, tmp_path: Path
) -> None:
    logged = Logged(tmp_path)
    logged.take(1)
    logged.machine.turn(0.0)
    lines = logged.lines()
    assert old in lines[number - 1]
    lines[number - 1] = lines[number - 1].replace(old, new)
    logged.path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ReplayError, match=why):
        replay_log(logged.path)


def test_a_log_holds_no_input_and_no_configuration(tmp_path: Path) -> None:
    logged = Logged(tmp_path)
    logged.take(1)
    text = "\n".join(logged.lines())
    assert '"/f"' not in text
    assert '"key"' not in text


def stimuli(folder: Path, told: list[str]) -> StimulusLog:
    origin = Origin((1,))
    return StimulusLog(folder, Node(0, origin, Config(), patience_s=1.0), origin, 1.0, told.append)


def test_a_desk_is_logged_beside_its_rank_and_flushed_with_it(tmp_path: Path) -> None:
    told: list[str] = []
    log = stimuli(tmp_path, told)
    hands: Any = Mock(**{"now.return_value": 0.0})
    machine = logged_machine(hands, DeskSetting(1, 60.0), log, 0, 3)
    machine.refused("u.a")
    path = tmp_path / f"0.3{SUFFIX}"
    assert len(path.read_text().splitlines()) == 1
    log.flush()
    assert len(path.read_text().splitlines()) == 2


def test_a_desk_whose_log_cannot_be_written_goes_on(tmp_path: Path) -> None:
    told: list[str] = []
    (tmp_path / f"0.1{SUFFIX}").symlink_to("/dev/full")
    (tmp_path / f"0.2{SUFFIX}").mkdir()
    log = stimuli(tmp_path, told)
    hands: Any = Mock(**{"now.return_value": 0.0})
    for client in (1, 2):
        machine = logged_machine(hands, DeskSetting(1, 60.0), log, 0, client)
        for _ in range(2):
            machine.refused("u.a")
            log.flush()
    assert told == [
        f"the stimuli in {tmp_path / f'0.1{SUFFIX}'} end here: No space left on device",
        f"no stimuli in {tmp_path / f'0.2{SUFFIX}'}: Is a directory",
    ]


def test_a_machine_without_a_log_has_nothing_in_the_way() -> None:
    machine = DeskMachine(Mock(), DeskSetting(1, 60.0))
    assert not CALLS.keys() & vars(machine).keys()
