"""Nodes of a live scheduler: their file, their slots, and what becomes of them."""

from pathlib import Path

import msgspec
import pytest

from mallob_py.batch.live.launch import Allotment
from mallob_py.batch.live.nodes import Node, NodeBook, NodesError, NodeState, read_node_file


def test_a_node_file_names_hosts_with_their_slots(tmp_path: Path) -> None:
    path = tmp_path / "nodes"
    path.write_text("# the rack\n\nn1 slots=8\n  n2.cluster slots = 2  # half\nroot@n3\n")
    assert read_node_file(path) == {"n1": 8, "n2.cluster": 2, "root@n3": 1}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("n1\nn2 cpus=4\n", "line 2: 'n2 cpus=4' is not a node such as: n1 slots=8"),
        ("n1 slots=0\n", "line 1: slots is '0', not 1 to"),
        ("n1 slots=many\n", "line 1: slots is 'many'"),
        ("n1\n\nn1 slots=2\n", "line 3: n1 is listed twice"),
        ("-oProxyCommand=x\n", "line 1: '-oProxyCommand=x' is not the name of a host"),
        ("n1:22\n", "line 1: 'n1:22' is not the name of a host"),
        ("# none\n", "no node in it"),
    ],
)
def test_a_wrong_node_file_is_refused_with_the_line_at_fault(text: str, error: str, tmp_path: Path) -> None:
    path = tmp_path / "nodes"
    path.write_text(text)
    with pytest.raises(NodesError, match=f"{path}.*{error}"):
        read_node_file(path)


def states(book: NodeBook) -> dict[str, NodeState]:
    return {node.name: node.state for node in book}


def test_slots_keep_their_numbers_while_nodes_come_and_go() -> None:
    book = NodeBook()
    book.have({"n1": 2, "n2": 2})
    assert [book.host_of(slot) for slot in sorted(book.offered())] == ["n1", "n1", "n2", "n2"]
    book = NodeBook(msgspec.json.decode(msgspec.json.encode(list(book)), type=list[Node]))
    book.have({"n2": 3, "n3": 1})
    assert states(book)["n1"] is NodeState.GONE
    assert book.offered() == {2, 3, 4, 5}
    assert [book.host_of(slot) for slot in range(6)] == ["n1", "n1", "n2", "n2", "n2", "n3"]
    book.forget({1})
    assert "n1" in states(book), "a job has one of its slots"
    book.forget(set())
    assert "n1" not in states(book)
    book.have({"n2": 1})
    assert (book.offered(), book.most) == ({2}, 1)


def test_nothing_starts_on_a_node_that_is_drained_or_down_until_it_is_resumed() -> None:
    book = NodeBook()
    book.have({"n1": 1, "n2": 1})
    book.drain("n1", "new fan")
    book.set_down("n2", "no route")
    assert (book.offered(), book.most) == (set(), 2)
    book.set_down("n1", "no route")
    assert [node.reason for node in book] == ["new fan", "no route"], "who drains it knows better"
    book.resume("n2")
    assert book.offered() == {1}
    with pytest.raises(NodesError, match=r"there is no node n9 \(there are n1, n2\)"):
        book.drain("n9", "")


def test_parts_of_a_node_have_cores_of_their_own_and_can_be_divided() -> None:
    cores = list(range(10, 19))

    def of(*parts: tuple[int, float, float], count: int = 4) -> list[int]:
        return Allotment(list(parts), count, 1.0).cores(cores)

    assert [of((part, 0.0, 1.0)) for part in range(4)] == [[10, 11], [12, 13], [14, 15], [16, 17]]
    assert of((3, 0.0, 1.0), (1, 0.0, 0.5)) == [16, 17, 12]
    assert of((3, 0.5, 1.0)) == [17]
    with pytest.raises(ValueError, match="9 cores are too few for 10 slots with cores of their own"):
        of((0, 0.0, 1.0), count=10)
    with pytest.raises(ValueError, match="9 cores are too few for 5 slots"):
        of((0, 0.0, 0.5), count=5)
