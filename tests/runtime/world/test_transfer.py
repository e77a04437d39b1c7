"""Descriptions between hosts, without MPI: transfers that send each other messages through queues."""

import errno
import fcntl
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from seeds import seeds
from transfer_net import Network

from mallob_py.protocol.host_health import Fault
from mallob_py.protocol.rank_messages import ChunkTaken, FileWanted
from mallob_py.runtime.world.transfer import CHUNK_BYTES, WINDOW


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    network = Network(8, tmp_path)
    yield network
    network.close()


@pytest.mark.parametrize("size", [1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 9 * CHUNK_BYTES + 77])
def test_a_description_arrives_as_it_is(size: int, network: Network) -> None:
    data = random.Random(size).randbytes(size)
    size = network.put(0, 1, data)
    network.ranks[5].fetch(1, size, (1,))
    network.deliver_all()
    assert network.here == [(5, 1)]
    assert network.ranks[5].path_of(1).read_bytes() == data
    assert network.most_on_the_way <= WINDOW


def test_a_description_that_is_here_already_is_not_sent_again(network: Network) -> None:
    size = network.put(0, 1, b"data")
    network.ranks[1].fetch(1, size, (0, 0))
    assert network.here == [(1, 1)]
    assert network.sent == []


def test_all_ranks_of_a_host_are_told_of_one_copy(network: Network) -> None:
    size = network.put(0, 1, b"data")
    for rank in (4, 5):
        network.ranks[rank].fetch(1, size, (0, 0))
    network.deliver_all()
    assert sorted(network.here) == [(4, 1), (5, 1)]
    assert sum(isinstance(message, bytes) for _, _, message in network.sent) == 1


def test_a_host_that_does_not_have_it_is_followed_by_the_next(network: Network) -> None:
    size = network.put(0, 1, b"data")
    network.ranks[6].fetch(1, size, (3, 1))
    network.deliver_all()
    assert [dest for _, dest, message in network.sent if isinstance(message, FileWanted)] == [2, 0]
    assert network.here == [(6, 1)]


def test_a_host_that_is_about_to_have_it_passes_it_on(network: Network) -> None:
    size = network.put(0, 1, bytes(3 * CHUNK_BYTES))
    network.ranks[2].fetch(1, size, (0, 0))
    network.ranks[4].fetch(1, size, (2, 0))
    network.deliver_all()
    assert sorted(network.here) == [(2, 1), (4, 1)]
    assert {source for source, dest, message in network.sent if isinstance(message, bytes) and dest == 4} == {
        2
    }


def test_two_hosts_that_ask_each_other_both_turn_to_the_client(network: Network) -> None:
    size = network.put(0, 1, b"data")
    network.ranks[2].fetch(1, size, (4, 0))
    network.ranks[4].fetch(1, size, (2, 0))
    network.deliver_all()
    assert sorted(network.here) == [(2, 1), (4, 1)]


@pytest.mark.parametrize("seed", seeds(50))
def test_whoever_asks_whom_in_whatever_order_everybody_is_served(seed: int, network: Network) -> None:
    rng = random.Random(seed)
    size = network.put(0, 1, rng.randbytes(2 * CHUNK_BYTES + 5))
    for rank in rng.sample(range(8), 8):
        network.ranks[rank].fetch(1, size, (rng.randrange(8), 1))
        for _ in range(rng.randrange(4)):
            network.deliver_one(rng)
    network.deliver_all(seed)
    assert sorted(network.here) == [(rank, 1) for rank in range(8)]
    assert len(network.files()) == 4


@pytest.mark.parametrize("seed", seeds(50))
def test_a_job_that_ends_at_any_moment_leaves_no_file(seed: int, network: Network) -> None:
    rng = random.Random(seed)
    size = network.put(0, 1, bytes(5 * CHUNK_BYTES))
    askers = rng.sample(range(2, 8), 6)
    for rank in askers:
        network.ranks[rank].fetch(1, size, (rng.randrange(8), 1))
    for _ in range(rng.randrange(60)):
        network.deliver_one(rng)
    for rank in rng.sample(range(8), 8):  # all ranks hear of the end, at different times
        network.ranks[rank].forget(1)
        for _ in range(rng.randrange(10)):
            network.deliver_one(rng)
    network.deliver_all(seed)
    assert network.files() == []


def test_a_request_that_comes_after_the_end_of_its_job_brings_nothing_here(network: Network) -> None:
    size = network.put(0, 1, b"data")
    network.ranks[4].forget(1)
    network.ranks[5].fetch(1, size, (0, 0))
    network.deliver_all()
    assert network.files() == ["0/1"]
    assert network.here == []


def test_an_acknowledgement_after_the_end_is_ignored(network: Network) -> None:
    network.ranks[0].receive(2, ChunkTaken(1, 1))
    assert network.sent == []


def test_full_shared_memory_costs_the_job_a_host_and_nobody_the_service(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pwrite(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    size = network.put(0, 1, bytes(6 * CHUNK_BYTES))
    monkeypatch.setattr(os, "pwrite", pwrite)
    network.ranks[4].fetch(1, size, (0, 0))
    network.ranks[5].fetch(1, size, (0, 0))
    network.deliver_all()
    assert network.here == []
    assert network.files() == ["0/1"]
    assert {(rank, job) for rank, job, _ in network.failed} == {(4, 1), (5, 1)}
    assert all("No space left" in reason for _, _, reason in network.failed)
    assert network.faults == [Fault.HOST] * 2


class Shm:
    """Shared memory that is full for the first `looks` tries."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
        self.looks, self._reserve = looks, os.posix_fallocate
        monkeypatch.setattr(os, "posix_fallocate", self._guarded)

    def _guarded(self, *arguments: int) -> None:
        self.looks -= 1
        if self.looks >= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._reserve(*arguments)


def test_a_host_waits_a_few_seconds_for_room_that_others_have_taken(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = network.put(0, 1, b"data")
    Shm(monkeypatch, looks=3)
    for rank in (4, 5):
        network.ranks[rank].fetch(1, size, (0, 0))
    for _ in range(3):
        network.deliver_all()
        assert network.here == network.failed == []
        network.ranks[4].keep_only({1})
    network.deliver_all()
    assert sorted(network.here) == [(4, 1), (5, 1)]


def test_a_host_without_room_for_long_is_left_to_others_and_nothing_is_kept_of_jobs_that_end(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [network.put(0, job, b"data") for job in (1, 2)]
    Shm(monkeypatch, looks=100)
    for job, size in enumerate(sizes, 1):
        network.ranks[4].fetch(job, size, (0, 0))
    network.ranks[4].forget(2)
    for _ in range(10):
        network.ranks[4].keep_only({1})
        network.deliver_all()
    assert [(rank, job) for rank, job, _ in network.failed] == [(4, 1)]
    assert network.faults == [Fault.HOST]


def test_a_host_that_had_no_room_is_asked_again_by_the_next_fetch(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pwrite(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    size = network.put(0, 1, bytes(6 * CHUNK_BYTES))
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", pwrite)
        network.ranks[4].fetch(1, size, (0, 0))
        network.deliver_all()
    network.ranks[5].fetch(1, size, (0, 0))
    network.deliver_all()
    assert network.here == [(5, 1)]


# --- transfers while memory is short ----------------------------------------------------------


def _fetched_by(network: Network, *ranks: int, job: int = 1, size: int = 7) -> int:
    size = network.put(0, job, bytes(size))
    for rank in ranks:
        network.ranks[rank].fetch(job, size, (0, 0))
    network.deliver_all()
    assert sorted(rank for rank, here in network.here if here == job) == sorted(ranks)
    return size


def test_a_description_that_no_rank_of_the_host_needs_is_dropped_and_fetched_anew(network: Network) -> None:
    size = _fetched_by(network, 4, 5)
    keeper, other = network.ranks[4], network.ranks[5]
    assert keeper.drop_unused(1) == 0
    keeper.keep_only(set())
    assert keeper.drop_unused(1) == 0, "the other rank needs it"
    other.keep_only({1})
    assert keeper.drop_unused(1) == 0
    other.keep_only(set())
    assert keeper.drop_unused(1) == 7
    assert not keeper.path_of(1).exists()
    other.fetch(1, size, (0, 0))
    network.deliver_all()
    assert network.here[-1] == (5, 1)
    assert keeper.path_of(1).read_bytes() == bytes(7)


def test_a_process_that_is_being_started_as_a_job_ends_leaves_no_description(network: Network) -> None:
    size = network.put(0, 1, b"data")
    rank = network.ranks[1]
    rank.fetch(1, size, (0, 0))
    reader, writer = os.pipe()
    child = os.fork()  # until exec, the child has its parent's open files and locks
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    for each in (rank, network.ranks[0]):
        each.forget(1)
    rank.keep_only(set())
    assert rank.path_of(1).exists(), "locked"
    os.close(writer)
    os.waitpid(child, 0)
    rank.keep_only(set())
    assert not rank.path_of(1).exists()


def test_a_description_that_comes_again_is_not_removed_later(network: Network) -> None:
    rank, other = network.ranks[1], network.ranks[0]
    Path(other.path_to_read(1)).write_bytes(b"data")
    other.bring(1, other.path_to_read(1))
    rank.fetch(1, 4, (0, 0))
    rank.let_go(1)  # the client's rank still has the description
    rank.fetch(1, 4, (0, 0))
    rank.keep_only({1})
    other.let_go(1)
    rank.keep_only({1})
    assert rank.path_of(1).exists()
    rank.forget(1)
    assert not rank.path_of(1).exists()


def test_a_description_that_is_dropped_before_a_rank_has_heard_of_it_is_asked_for_again(
    network: Network,
) -> None:
    size = _fetched_by(network, 4)
    network.ranks[4].keep_only(set())
    path = network.ranks[4].path_of(1)
    path.rename(path.with_suffix(".away"))  # so that the rank must ask the rank that keeps it
    network.ranks[5].fetch(1, size, (0, 0))
    path.with_suffix(".away").rename(path)
    rng = random.Random(0)
    assert network.deliver_one(rng, lambda source, dest: (source, dest) == (5, 4))
    assert network.ranks[4].drop_unused(1) == 7
    network.deliver_all()
    assert network.here[-1] == (5, 1)
    assert path.exists()


def test_a_description_that_another_rank_removes_while_it_is_dropped_is_no_error(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fetched_by(network, 4, 5)
    for rank in (4, 5):
        network.ranks[rank].keep_only(set())
    lock = fcntl.flock

    def lock_late(file: int, operation: int) -> None:
        monkeypatch.undo()
        network.ranks[5].path_of(1).unlink()
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    assert network.ranks[4].drop_unused(1) == 0
    assert network.ranks[4].drop_unused(1) == 0


def test_only_as_much_is_dropped_as_is_wanted_the_longest_unused_first(network: Network) -> None:
    for job in (1, 2, 3):
        _fetched_by(network, 4, job=job)
    keeper = network.ranks[4]
    keeper.keep_only(set())
    keeper.fetch(1, 7, (0, 0))
    keeper.keep_only(set())
    assert keeper.drop_unused(8) == 14
    assert [keeper.path_of(job).exists() for job in (1, 2, 3)] == [True, False, False]


def test_the_hosts_own_descriptions_are_never_dropped_since_others_may_ask_for_them(network: Network) -> None:
    network.put(0, 1, b"data")
    assert network.ranks[0].drop_unused(1) == 0
    _fetched_by(network, 4)
    assert network.ranks[5].drop_unused(1) == 0, "only the keeper drops"


def test_a_description_of_a_job_that_is_over_needs_no_lock(network: Network) -> None:
    _fetched_by(network, 4, 5)
    for rank in (5, 4):
        network.ranks[rank].forget(1)
        network.ranks[rank].forget(1)
    assert network.ranks[4].drop_unused(1) == 0


def test_a_new_keeper_removes_what_the_lost_one_had_no_time_to(network: Network) -> None:
    ended = network.put(2, 1, b"of a job that ends")
    network.put(2, 2, b"of one that goes on")
    network.ranks[3].fetch(1, ended, (0, 0))
    network.put(0, 3, bytes(9 * CHUNK_BYTES))
    network.ranks[2].fetch(3, 9 * CHUNK_BYTES, (0, 0))
    assert network.files() == ["0/3", "2/1", "2/2", "2/3~"]
    network.ranks[3].forget(1)
    network.lost.add(2)
    network.ranks[3].halt()
    network.ranks[3].go_on({0, 1, 3, 4, 5})
    assert network.files() == ["0/3", "2/2"]


def test_what_a_lost_rank_was_having_read_goes_and_what_others_read_stays(network: Network) -> None:
    for rank in (2, 3):
        Path(network.ranks[rank].path_to_read(1)).write_bytes(b"a part")
    assert network.files() == ["2/1+2", "2/1+3"]
    network.lost.add(3)
    network.ranks[2].halt()
    network.ranks[2].go_on({0, 1, 2, 4, 5})
    assert network.files() == ["2/1+2"]


def _change(network: Network) -> None:
    for rank in network.ranks:
        rank.halt()
    for rank in network.ranks:
        rank.go_on(range(len(network.ranks)))


def test_a_job_that_is_over_and_whose_client_is_lost_may_run_again(network: Network) -> None:
    _fetched_by(network, 4, 5)
    for rank in network.ranks[2:]:
        rank.forget(1)
    assert network.files() == ["0/1"]
    _change(network)
    size = network.ranks[0].path_of(1).stat().st_size
    network.here.clear()
    network.ranks[5].fetch(1, size, (0, 0))
    network.deliver_all()
    assert network.here == [(5, 1)]


def test_what_nobody_speaks_of_after_a_change_is_removed_by_the_keeper(network: Network) -> None:
    for job in (1, 2):
        _fetched_by(network, 4, job=job)
    _change(network)
    network.put(4, 3, b"read after the change")
    for rank in (4, 5):
        network.ranks[rank].keep_only(set())
        network.ranks[rank].drop_unheard({2})
    assert network.files() == ["0/1", "0/2", "4/2", "4/3"]
    network.ranks[0].drop_unheard({2})
    network.ranks[4].drop_unheard(set())
    assert network.files() == ["0/2", "4/2", "4/3"]


def test_a_job_that_nobody_has_spoken_of_for_long_may_come_back(network: Network) -> None:
    size = network.put(0, 1, b"data")
    for _ in range(2):
        network.ranks[2].fetch(1, size, (0, 0))
        network.deliver_all()
        assert network.here.pop() == (2, 1)
        network.ranks[2].let_go(1)
        assert network.files() == ["0/1"]


def test_a_job_that_has_come_again_keeps_its_description_though_others_hear_late_of_its_former_end(
    network: Network,
) -> None:
    client, keeper = network.ranks[3], network.ranks[2]
    client.forget(1)
    (read := Path(client.path_to_read(1))).write_bytes(b"again")
    client.bring(1, str(read))
    keeper.forget(1)
    keeper.fetch(1, 5, (3, 3))
    network.deliver_all()
    assert network.here == [(2, 1)]
    client.forget(1)
    keeper.forget(1)
    assert network.files() == []


def test_a_rank_that_has_nothing_to_do_with_a_description_does_not_look_for_it(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fetched_by(network, 4, 5)
    opened: list[str] = []
    really_open = os.open

    def noted_open(path: str, *arguments: int) -> int:
        opened.append(str(path))
        return really_open(path, *arguments)

    monkeypatch.setattr(os, "open", noted_open)
    for rank in network.ranks:
        rank.forget(2)
    network.ranks[3].forget(1)
    assert opened == []
    for rank in network.ranks:
        rank.forget(1)
    assert network.files() == []


def test_a_keeper_removes_at_its_end_what_a_lost_client_had_read(network: Network) -> None:
    network.ranks[3].path_of(1).write_bytes(b"read by a client that is lost, and its lock with it")
    network.lost.add(3)
    network.ranks[2].go_on({0, 1, 2, 4, 5})
    network.ranks[2].drop_unheard({1})
    assert network.files() == ["2/1"]
    network.ranks[2].forget(1)
    assert network.files() == []
