"""A replay of recorded stimuli gives the same effects; otherwise the replay names the first different
line.
"""

from functools import partial
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from seeds import seeds

from mallob_py.protocol import PeerViolation
from mallob_py.protocol.config import Config
from mallob_py.protocol.messages import Description, Epoch
from mallob_py.protocol.node import Node
from mallob_py.protocol.rank_book import Origin
from mallob_py.protocol.rank_effects import Tell
from mallob_py.protocol.rank_stimuli import AnyRankStimulus, RankLost, Said, TimeCame, ToPE
from mallob_py.protocol.stimuli import (
    AnyStimulus,
    Drain,
    JobInterrupted,
    JobParameters,
    JobSubmitted,
    Received,
    SystemEnds,
    WorkerStarted,
)
from mallob_py.runtime.stimulus_log import SUFFIX, StimulusLog
from mallob_py.simulation.lives import CLUSTERS
from mallob_py.simulation.plan import draw_plan
from mallob_py.simulation.replay import Difference, ReplayError, replay, replay_log
from mallob_py.simulation.scenario import Scenario


def complain(text: str) -> None:
    raise AssertionError(text)


def log_of(folder: Path, *stimuli: AnyRankStimulus) -> Path:
    """Write the log of a single rank that got these stimuli, a second apart."""
    origin = Origin((1,))
    node = Node(0, origin, Config(), patience_s=1.0)
    log = StimulusLog(folder, node, origin, 1.0, complain)
    for now, stimulus in enumerate(stimuli):
        log.handle(node, stimulus, float(now))
    log.flush()
    return folder / f"0{SUFFIX}"


def short_life(folder: Path) -> Path:
    return log_of(
        folder,
        ToPE(0, JobSubmitted(1, JobParameters(), Description(1, b"x"))),
        ToPE(0, WorkerStarted(0)),
        TimeCame(),
        ToPE(0, JobInterrupted(1)),
    )


@pytest.mark.parametrize("capacities", [(1, 1), (2, 3, 1)])
def test_a_life_with_a_loss_comes_to_the_same_effects_again(
    capacities: tuple[int, ...], tmp_path: Path
) -> None:
    """The log file continues in the next generation."""
    origin = Origin(capacities)
    nodes = {rank: Node(rank, origin, Config(), patience_s=1.0) for rank in range(len(capacities))}
    logs = {rank: StimulusLog(tmp_path, node, origin, 1.0, complain) for rank, node in nodes.items()}

    def tell(rank: int, stimulus: AnyRankStimulus) -> None:
        logs[rank].handle(nodes[rank], stimulus, 0.1)
        for effect in nodes[rank].take_effects():
            if isinstance(effect, Tell) and effect.rank in nodes:
                said = Said(rank, effect.g, effect.source, effect.dest, effect.message)
                tell(effect.rank, said)

    tell(0, ToPE(0, JobSubmitted(1, JobParameters(), Description(1, b"x"))))
    tell(0, ToPE(0, WorkerStarted(0)))
    del nodes[len(capacities) - 1]
    tell(0, RankLost(len(capacities) - 1, "was lost"))
    tell(0, ToPE(0, JobInterrupted(1)))
    assert {node.present.number for node in nodes.values()} == {2}
    for log in logs.values():
        log.flush()
    assert "JobInterrupted" in (tmp_path / f"0{SUFFIX}").read_text()
    assert replay(tmp_path) == 0


def test_random_lives_know_every_stimulus() -> None:
    known: set[type] = set()

    def note(_handle: Any, stimulus: AnyStimulus, now: float) -> None:
        known.add(type(stimulus))
        _handle(stimulus, now)

    for seed in seeds(40):
        scenario = Scenario(draw_plan(seed))
        for pe in scenario.cluster.pes:
            pe.handle = partial(note, pe.handle)  # type: ignore[method-assign]
        scenario.run()
    # the first two end a rank's log; a node calls `PE.receive` instead of the third
    others = {SystemEnds, Drain, Received}
    assert known == set(get_args(AnyStimulus)) - others


def test_the_line_with_other_effects_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = short_life(tmp_path)
    assert replay_log(path) == 4
    lines = path.read_text().splitlines(keepends=True)
    assert '"worker":0' in lines[1]
    path.write_text(
        "".join(
            [
                lines[0],
                lines[1].replace('"type":"StartWorker","worker":0', '"type":"StartWorker","worker":7'),
                *lines[2:],
            ]
        )
    )
    found = replay_log(path)
    assert isinstance(found, Difference)
    assert (found.path, found.line) == (path, 2)
    assert "JobSubmitted(job=1" in found.text
    assert "'worker': 0" in found.text.split("in the log")[0]
    assert "'worker': 7" in found.text.split("in the log")[1]
    assert replay(tmp_path) == 1
    assert f"{path}:2: at 0.000000 s" in capsys.readouterr().out


def test_an_effect_too_many_or_too_few_is_a_difference(tmp_path: Path) -> None:
    path = short_life(tmp_path)
    lines = path.read_text().splitlines(keepends=True)
    del lines[2]  # the worker never reports that it runs
    path.write_text("".join(lines))
    found = replay_log(path)
    assert isinstance(found, Difference)
    assert "effect" in found.text


def test_what_a_pe_raised_is_raised_again(tmp_path: Path) -> None:
    with pytest.raises(PeerViolation):
        log_of(tmp_path, TimeCame(), ToPE(0, Received(0, Epoch(7, ()))))
    (path,) = tmp_path.iterdir()
    assert "epoch 7 after epoch 0" in path.read_text()
    assert replay_log(path) == 2
    path.write_text(path.read_text().replace('epoch 7 after epoch 0"', 'epoch 9 after epoch 0"'))
    found = replay_log(path)
    assert isinstance(found, Difference)
    assert found.line == 3


def test_a_line_that_was_not_finished_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = short_life(tmp_path)
    path.write_bytes(path.read_bytes()[:-10])
    assert replay_log(path) == 3
    assert "its last line is not complete" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "text", "why"),
    [
        (0, '{"rank":0}', r":1: no head of a log of stimuli"),
        (0, None, r":1: there is no rank 3 of 1"),
        (2, "nonsense", r":3: JSON is malformed"),
        (2, '{"t":1.0,"stimulus":{"type":"Gift"},"effects":[]}', r":3: Invalid value 'Gift'"),
    ],
)
def test_a_log_that_cannot_be_played_is_told_with_its_line(
    line: int, text: str | None, why: str, tmp_path: Path
) -> None:
    path = short_life(tmp_path)
    lines = path.read_text().splitlines()
    lines[line] = lines[line].replace('"rank":0', '"rank":3') if text is None else text
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ReplayError, match=why):
        replay_log(path)


def test_a_folder_without_stimuli_and_a_file_of_something_else_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ReplayError, match="holds no stimuli"):
        replay(tmp_path)
    with pytest.raises(ReplayError, match="No such file"):
        replay(tmp_path / "nothing")
    (tmp_path / "else").write_text("p cnf 1 1\n")
    with pytest.raises(ReplayError, match="holds no plan and no stimuli"):
        replay(tmp_path / "else")


def test_a_plan_is_played_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(CLUSTERS.to_json(draw_plan(0).cut_off(3)))
    assert replay(path) == 0
    assert "all invariants hold" in capsys.readouterr().out


def test_a_log_that_cannot_be_written_any_more_ends_and_harms_nobody(tmp_path: Path) -> None:
    told: list[str] = []
    origin = Origin((1,))
    node = Node(0, origin, Config(), patience_s=1.0)
    (tmp_path / f"0{SUFFIX}").symlink_to("/dev/full")
    log = StimulusLog(tmp_path, node, origin, 1.0, told.append)
    for _ in range(2):
        log.handle(node, TimeCame(), 0.0)
        log.flush()
    assert told == [f"the stimuli in {tmp_path / f'0{SUFFIX}'} end here: No space left on device"]


def test_stimuli_survive_their_way_through_a_file() -> None:
    submitted = ToPE(0, JobSubmitted(1, JobParameters(priority=0.1, near=3), Description(3, b"\x00\xff!")))
    again = msgspec.json.decode(msgspec.json.encode(submitted), type=AnyRankStimulus)
    assert again == submitted
