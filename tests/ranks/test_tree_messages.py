"""Workers of real ranks that talk along their job tree, while the tree stays the same and while it
changes.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from running import Running, needs_mpiexec, poll_until, serving, with_apps

pytestmark = needs_mpiexec

RANKS = 5
APPS = with_apps(folder="tests/runtime/workers", ALLREDUCE="tree_apps:AllReduce", GOSSIP="tree_apps:Gossip")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("service"), ranks=RANKS, env=APPS) as running:
        yield running
        assert running.process.poll() is None, running.output
        assert running.stop() == 0
        assert "Traceback" not in running.output


def test_messages_travel_down_to_each_worker_and_up_again(service: Running) -> None:
    reply = service.ask("gossip", application="GOSSIP", configuration={"workers": RANKS})
    assert reply["result"]["resultcode"] == 10, reply
    assert reply["result"]["paths"] == {
        "0": [0], "1": [0, 1], "2": [0, 2], "3": [0, 1, 3], "4": [0, 1, 4]
    }  # fmt: skip


def test_reductions_go_on_while_the_tree_shrinks_and_grows(service: Running, tmp_path: Path) -> None:
    """A job of much higher priority takes all workers but the root, until a reduction has noticed."""
    turns = 3
    configuration = {"sizes": [RANKS, 1] * turns + [RANKS], "folder": str(tmp_path)}
    breathing = service.submit("breathing", application="ALLREDUCE", configuration=configuration)
    for turn in range(turns):
        poll_until((tmp_path / str(2 * turn)).exists, f"full tree, turn {turn}")
        heavy = service.submit(f"heavy{turn}", application="SLEEP", priority=100.0)
        poll_until((tmp_path / str(2 * turn + 1)).exists, f"root alone, turn {turn}")
        service.interrupt(f"heavy{turn}")
        assert service.reply(heavy)["result"]["outcome"] == "interrupted"
    reply = service.reply(breathing)
    assert reply["result"]["resultcode"] == 10, reply
    assert reply["result"]["solution"] == [0, 1, 2, 3, 4]


def test_reductions_survive_jobs_that_come_and_go_all_the_time(service: Running, tmp_path: Path) -> None:
    """With more jobs than ranks, the whole job is sometimes suspended, and its root moves to other ranks."""
    configuration = {"sizes": [RANKS, 1, RANKS], "folder": str(tmp_path)}
    fluttering = service.submit("flutter", application="ALLREDUCE", configuration=configuration)
    poll_until((tmp_path / "0").exists, "full tree")
    short = [
        service.submit(
            f"short{number}", application="SLEEP", priority=5.0, max_demand=demand, cpu_limit="100ms"
        )
        for number, demand in enumerate([1, 2, 3, 4] * 5)
    ]
    for path in short:
        service.reply(path)
    heavy = service.submit("last-heavy", application="SLEEP", priority=100.0)
    poll_until((tmp_path / "1").exists, "root alone")
    service.interrupt("last-heavy")
    service.reply(heavy)
    assert service.reply(fluttering)["result"]["solution"] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("index", [0, 1, 4])
def test_a_worker_that_dies_in_the_midst_of_a_reduction_is_back_in_a_later_one(
    service: Running, tmp_path: Path, index: int
) -> None:
    """The root, an inner worker or a leaf dies within its first three of ten reductions over full trees."""
    configuration = {"sizes": [RANKS] * 10, "folder": str(tmp_path), "crash": index}
    reply = service.ask(f"crash{index}", application="ALLREDUCE", configuration=configuration)
    assert reply["result"]["solution"] == [0, 1, 2, 3, 4], reply
    service.await_event("crashed", job=reply["internal_id"], index=index)
    assert (tmp_path / "crashed").exists()
