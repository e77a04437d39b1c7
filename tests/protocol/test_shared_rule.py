"""PEs that share a memory share the images of their epochs, and nothing else."""

import pytest

from mallob_py.protocol.balancing import Image, ImageRule, local_rule, shared_rule
from mallob_py.protocol.messages import Epoch, JobEvent

EMPTY = Image({}, {}, 0)


def epoch(number: int, demand: int) -> Epoch:
    return Epoch(number, (JobEvent(1, number, demand, 1.0, 0.0),))


def counted(asked: list[int]) -> ImageRule:
    rule = local_rule(4)

    def counting(image: Image, message: Epoch) -> Image:
        asked.append(message.epoch)
        return rule(image, message)

    return counting


def test_each_epoch_is_evaluated_once_for_all_pes() -> None:
    asked: list[int] = []
    rule = shared_rule(counted(asked), 3)
    first = [rule(EMPTY, epoch(1, 2)) for _ in range(3)]
    assert first[0] is first[1] is first[2]
    assert first[0].volumes == {1: 2}
    assert [rule(image, epoch(2, 4)).volumes for image in first] == [{1: 4}] * 3
    assert asked == [1, 2]


def test_a_pe_may_be_epochs_behind_another() -> None:
    asked: list[int] = []
    rule = shared_rule(counted(asked), 2)
    ahead = rule(rule(EMPTY, epoch(1, 2)), epoch(2, 3))
    behind = rule(EMPTY, epoch(1, 2))
    assert behind.volumes == {1: 2}
    assert rule(behind, epoch(2, 3)) is ahead
    assert asked == [1, 2]


def test_an_epoch_is_forgotten_when_all_have_applied_it() -> None:
    asked: list[int] = []
    rule = shared_rule(counted(asked), 2)
    for _ in range(4):
        rule(EMPTY, epoch(1, 2))
    assert asked == [1, 1]


def test_pes_that_disagree_are_found_out() -> None:
    rule = shared_rule(local_rule(4), 2)
    rule(EMPTY, epoch(1, 2))
    with pytest.raises(AssertionError, match="different epochs 1"):
        rule(EMPTY, epoch(1, 3))


def test_pes_with_different_images_are_found_out() -> None:
    rule = shared_rule(local_rule(4), 2)
    rule(EMPTY, epoch(1, 2))
    with pytest.raises(AssertionError, match="different images before epoch 1"):
        rule(Image({}, {}, 3), epoch(1, 2))
