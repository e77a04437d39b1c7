"""Statements that every worker of a job receives, even if messages are lost."""

import random

import pytest
from fake_context import FakeContext
from seeds import seeds

from mallob_py.kit import Gossip, TreeMessage, gossip


class Node(FakeContext):
    """A worker of a tree whose messages wait until they are passed on."""

    def __init__(self, index: int, volume: int) -> None:
        super().__init__({}, index, {})
        self.children = tuple(child for child in (2 * index + 1, 2 * index + 2) if child < volume)
        self.inbox: list[TreeMessage] = []
        self.outbox: list[tuple[int, bytes]] = []

    def send_to_parent(self, data: bytes) -> None:
        if self.index:
            self.outbox.append(((self.index - 1) // 2, data))

    def send_to_children(self, data: bytes) -> None:
        self.outbox += [(child, data) for child in self.children]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(gossip.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("seed", seeds(20))
def test_all_have_the_same_table_in_the_end_though_messages_are_lost(seed: int, clock: list[float]) -> None:
    chance = random.Random(seed)
    volume = chance.randrange(1, 20)
    nodes = [Node(index, volume) for index in range(volume)]
    tables = [Gossip(node) for node in nodes]
    for number in range(5):
        tables[chance.randrange(volume)].put(f"name {number % 3}", bytes([chance.randrange(256)]))
    for round_number in range(40):
        loss = 0.5 if round_number < 20 else 0.0
        clock[0] += 1.0
        for node, table in zip(nodes, tables, strict=True):
            inbox, node.inbox = node.inbox, []
            table.turn(inbox)
        for node in nodes:
            for receiver, data in node.outbox:
                if chance.random() >= loss:
                    nodes[receiver].inbox.append(TreeMessage(node.index, data))
            node.outbox = []
    assert len(tables[0].table) == 3
    assert all(table.table == tables[0].table for table in tables)


def test_the_larger_of_two_values_stays_in_whatever_order_they_come(clock: list[float]) -> None:
    table = Gossip(Node(0, 1))
    table.put("a", b"2")
    table.put("a", b"1")
    assert table.table == {"a": b"2"}


def test_nothing_is_sent_while_there_is_nothing_to_say_or_nothing_new(clock: list[float]) -> None:
    node = Node(0, 3)
    table = Gossip(node)
    table.turn([])
    assert node.outbox == []
    table.put("a", b"1")
    table.turn([])
    table.turn([])
    assert len(node.outbox) == 2
    clock[0] += 10.0
    table.turn([])
    assert len(node.outbox) == 4


def test_messages_of_others_and_those_that_came_back_are_left_alone(clock: list[float]) -> None:
    node = Node(1, 4)
    message = gossip.MAGIC + b"\x81\xa1a\xc4\x011"
    table = Gossip(node)
    assert not table.turn([TreeMessage(0, b"something else"), TreeMessage(0, message, returned=True)])
    assert table.turn([TreeMessage(0, message)])
    assert table.table == {"a": b"1"}
