"""One evaluation of each epoch for PEs that share a memory.

All PEs apply the same epochs in the same order (balancing.py), so PEs of one rank, or of one
simulated cluster, need not each derive the same image. They share the first one's, which no
one changes. An image is forgotten here when all have taken it.
"""

from __future__ import annotations

from mallob_py.protocol.balancing import Image, ImageRule
from mallob_py.protocol.messages import Epoch


class _Evaluation:
    """The image before an epoch, the epoch, the image after it; and how many PEs are still to ask."""

    __slots__ = ("after", "before", "left", "message")

    def __init__(self, before: Image, message: Epoch, after: Image, left: int) -> None:
        self.before = before
        self.message = message
        self.after = after
        self.left = left


def shared_rule(rule: ImageRule, count: int) -> ImageRule:
    """`rule` for `count` PEs, each of which asks once per epoch."""
    if count == 1:
        return rule
    evaluations: dict[int, _Evaluation] = {}

    def shared(image: Image, epoch: Epoch) -> Image:
        known = evaluations.get(epoch.epoch)
        if known is None:
            known = evaluations[epoch.epoch] = _Evaluation(image, epoch, rule(image, epoch), count)
        before, message = known.before, known.message
        assert image is before or image == before, f"two PEs have different images before epoch {epoch.epoch}"
        assert message is epoch or message == epoch, f"two PEs have heard of different epochs {epoch.epoch}"
        known.left -= 1
        if known.left == 0:
            del evaluations[epoch.epoch]
        return known.after

    return shared
