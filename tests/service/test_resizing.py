"""Which ranks leave, and how orders that cannot be carried out end."""

import errno
import os
import select
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mallob_py.protocol.placement import Placement
from mallob_py.protocol.rank_messages import RankNews
from mallob_py.runtime.remote_shell import SSH
from mallob_py.runtime.world.newcomer_process import Site
from mallob_py.service import ServiceError
from mallob_py.service.resizing import Resizing, leavers_of, spread
from mallob_py.service.store import orders
from mallob_py.service.store.in_folder import Watching
from mallob_py.service.store.orders import (
    Answer,
    Departure,
    Drain,
    HostShare,
    Order,
    OrderFolder,
    Resize,
    answer_to,
    give,
    ordered_ranks,
    take_back,
)


@pytest.mark.parametrize(
    ("hosts", "count", "leavers"),
    [
        ([0, 0, 0, 0], 1, (3,)),
        ([0, 0, 0, 0], 3, (1, 2, 3)),
        ([0, 0, 2, 2], 2, (2, 3)),
        ([0, 0, 2, 2], 3, (1, 2, 3)),
        ([0, 0, 2, 3, 3, 3], 1, (2,)),  # a host of one rank is emptied
        ([0, 1, 1, 1], 1, (3,)),  # but not the host of the rank that must stay
        ([0, 0, 0, 3, 3, 5], 2, (4, 5)),  # one host, and the highest rank of the next smallest host
        ([0, 0, 0, 3, 3], 0, ()),
    ],
)
def test_those_leave_that_empty_hosts_the_highest_first(
    hosts: list[int], count: int, leavers: tuple[int, ...]
) -> None:
    assert leavers_of(dict(enumerate(hosts)), count, stays=0) == leavers


def test_a_rank_with_a_client_leaves_after_the_others_of_its_host() -> None:
    assert leavers_of({0: 0, 1: 0, 2: 0, 3: 0}, 2, stays=0, clients=[2]) == (1, 3)
    assert leavers_of({0: 0, 1: 0, 2: 2}, 1, stays=0, clients=[2]) == (2,)


class FakeRank:
    """A stand-in for a rank, with the parts that orders use."""

    def __init__(self, ranks: int, survives: bool = True) -> None:
        placement = Placement([1] * ranks)
        self.rank = 0
        self.hosts = dict.fromkeys(range(100), 0)
        self.node = SimpleNamespace(
            founders=placement,
            survives=survives,
            placement=placement,
            present=SimpleNamespace(number=1),
            reports=SimpleNamespace(of_ranks={rank: RankNews("here", rank, 1, 0) for rank in range(ranks)}),
        )
        self.seen: set[int] = set()
        self.lookout = SimpleNamespace(is_seen=self.seen.__contains__)
        self.left: list[list[int]] = []
        self.drains: list[tuple[int, float]] = []
        self.grown: list[int] = []
        self.done: Callable[[Mapping[int, str]], None] | None = None

    def now(self) -> float:
        return 100.0

    def have_drain(self, rank: int, until_s: float) -> None:
        self.drains.append((rank, until_s))

    def have_leave(self, ranks: list[int]) -> None:
        self.left.append(ranks)

    def grow(self, sites: Sequence[Site], done: Callable[[Mapping[int, str]], None]) -> None:
        self.grown.append(len(sites))
        self.sites = sites
        self.done = done

    def begin(self, *members: int) -> None:
        self.node.present.number += 1
        self.node.placement = Placement([1] * len(members), members)


def test_orders_are_looked_for_where_the_kernel_has_no_further_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: Path) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(orders, "InotifyWatch", fails)
    told: list[str] = []
    folder = OrderFolder(tmp_path, is_new_service=True, log=told.append)
    assert folder.fileno() is None
    assert folder.poll_s < 10.0
    assert told == [f"inotify does not work here (Too many open files); polling {folder.path}"]


def taking_orders(
    rank: FakeRank, api_dir: Path, *, is_new: bool = True, watching: Watching = Watching.AUTO
) -> Resizing:
    fake: Any = rank
    return Resizing(fake, OrderFolder(api_dir, is_new, watching), [])


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (Resize(by=-4), "there are 4 ranks, and one has to stay"),
        (Resize(by=3, hosts=(HostShare("one", 2),)), "the named hosts may have at most 2"),
        (Resize(to=100_000), "99996 further ranks are wanted, but at most 64 can join by one order"),
        (Drain("7", 0.0), "there is no rank 7: the ranks are 0, 1, 2, 3"),
        (Drain("there", 0.0), "there is no host there: the hosts are here"),
        (Drain("here", 0.0), "these are all ranks"),
    ],
)
def test_what_is_not_possible_is_said_in_one_line(order: Order, said: str, tmp_path: Path) -> None:
    resizing = taking_orders(FakeRank(4), tmp_path)
    given = give(tmp_path, order)
    resizing.turn(0.0)
    answer = answer_to(given)
    assert answer is not None
    assert said in answer.refusal
    assert list((tmp_path / "orders").iterdir()) == []


def test_one_of_those_that_were_there_at_the_start_stays(tmp_path: Path) -> None:
    rank = FakeRank(2)
    rank.rank = 3
    rank.begin(1, 2, 3)
    resizing = taking_orders(rank, tmp_path)
    given = give(tmp_path, Drain("1", 0.0))
    resizing.turn(0.0)
    answer = answer_to(given)
    assert answer is not None
    assert "one of the ranks with which the service started has to stay" in answer.refusal
    give(tmp_path, Resize(to=1))
    resizing.turn(0.1)
    assert [drained for drained, _ in rank.drains] == [2, 3]


def test_where_a_loss_ends_all_nobody_can_leave(tmp_path: Path) -> None:
    rank = FakeRank(4, survives=False)
    resizing = taking_orders(rank, tmp_path)
    given = give(tmp_path, Resize(by=-1))
    resizing.turn(0.0)
    answer = answer_to(given)
    assert answer is not None
    assert "--rank-loss survive" in answer.refusal
    assert rank.drains == []


def test_an_order_is_answered_when_the_processes_are_gone(tmp_path: Path) -> None:
    rank = FakeRank(4)
    resizing = taking_orders(rank, tmp_path)
    given = give(tmp_path, Resize(to=2))
    resizing.turn(0.0)
    assert rank.drains == [(2, 100.0), (3, 100.0)]
    resizing.drained(2)
    resizing.turn(0.0)
    assert rank.left == []
    resizing.drained(3)
    resizing.turn(0.0)
    assert rank.left == [[2, 3]]
    rank.seen |= {2, 3}
    rank.begin(0, 1)
    resizing.turn(0.1)
    assert answer_to(given) is None
    assert resizing.deadline_s < 101.0  # no message may report the ends of lost ranks
    rank.seen.clear()
    resizing.turn(0.2)
    answer = answer_to(given)
    assert answer is not None
    assert (answer.before, answer.after, answer.refusal) == (4, 2, "")


@pytest.mark.parametrize(("problems", "said"), [({}, ""), ({3: "was lost"}, "rank 3 was lost")])
def test_growth_is_answered_when_all_have_joined_or_failed(
    problems: dict[int, str], said: str, tmp_path: Path
) -> None:
    rank = FakeRank(2)
    resizing = taking_orders(rank, tmp_path)
    first, second = give(tmp_path, Resize(to=4)), give(tmp_path, Resize(by=-1))
    os.utime(first, (0, 0))
    resizing.turn(0.0)
    resizing.turn(0.1)
    assert rank.grown == [2]
    rank.begin(*range(4 - len(problems)))
    assert rank.done is not None
    rank.done(problems)
    answer = answer_to(first)
    assert answer is not None
    assert (answer.before, answer.after) == (2, 4 - len(problems))
    assert said in answer.refusal
    assert rank.left == []
    resizing.turn(0.2)
    assert rank.drains
    assert answer_to(second) is None


def test_another_rank_goes_on_with_an_order_as_it_was_decided(tmp_path: Path) -> None:
    first = FakeRank(4)
    given = give_to(tmp_path, Resize(by=-1), first)
    heir = FakeRank(4)
    heir.begin(0, 1, 2)  # the order's result exists already
    taking_orders(heir, tmp_path, is_new=False).turn(0.0)
    assert heir.drains == []
    answer = answer_to(given)
    assert answer is not None
    assert (answer.before, answer.after) == (4, 3)


def give_to(api_dir: Path, order: Order, rank: FakeRank) -> Path:
    """Have an order decided by this rank."""
    resizing = taking_orders(rank, api_dir)
    given = give(api_dir, order)
    resizing.turn(0.0)
    resizing.close()
    return given


def test_an_order_is_repeated_in_a_generation_that_has_come_without_it(tmp_path: Path) -> None:
    rank = FakeRank(4)
    resizing = taking_orders(rank, tmp_path)
    give(tmp_path, Drain("2", 0.0))
    resizing.turn(0.0)
    resizing.drained(2)
    resizing.turn(0.1)
    assert rank.left == [[2]]
    rank.begin(0, 1, 2)
    resizing.turn(0.2)
    assert rank.drains == [(2, 100.0), (2, 100.0)]
    assert rank.left == [[2]]
    resizing.drained(2)
    resizing.turn(0.3)
    assert rank.left == [[2], [2]]


def test_of_those_who_are_left_and_all_are_to_leave_one_stays_and_the_others_need_not_wait(
    tmp_path: Path,
) -> None:
    rank = FakeRank(4)
    resizing = taking_orders(rank, tmp_path)
    rank.node.reports.of_ranks |= {each: RankNews("there", each, 1, 0) for each in (2, 3)}
    given = give(tmp_path, Drain("here", 60.0))
    resizing.turn(0.0)
    assert [each for each, _ in rank.drains] == [0, 1]
    rank.begin(0, 1)  # ranks 2 and 3 are lost
    resizing.turn(0.1)
    assert rank.drains[2:] == [(1, 100.0)]
    resizing.drained(1)
    resizing.turn(0.2)
    assert rank.left == [[1]]
    rank.begin(0)
    resizing.turn(0.3)
    assert len(rank.drains) == 3
    answer = answer_to(given)
    assert answer is not None
    assert answer.refusal == "rank 0 stays: all others are gone, and one has to stay"
    assert (answer.before, answer.after) == (4, 1)


def test_who_drains_has_its_grace(tmp_path: Path) -> None:
    rank = FakeRank(4)
    resizing = taking_orders(rank, tmp_path)
    give(tmp_path, Drain("2", 60.0))
    resizing.turn(0.0)
    ((drained, until_s),) = rank.drains
    assert drained == 2
    assert 100.0 < until_s <= 160.0


def test_a_service_that_starts_anew_knows_nothing_of_earlier_orders(tmp_path: Path) -> None:
    given = give_to(tmp_path, Resize(by=-1), FakeRank(4))
    rank = FakeRank(4)
    taking_orders(rank, tmp_path).turn(0.0)
    assert rank.drains == []
    assert not given.exists()


def test_where_nobody_tells_of_files_orders_are_looked_for(tmp_path: Path) -> None:
    rank: Any = FakeRank(2)
    resizing = Resizing(rank, OrderFolder(tmp_path, is_new_service=True, watching=Watching.POLL), [])
    resizing.turn(0.0)
    assert resizing.fileno() is None
    give(tmp_path, Resize(by=-1))
    resizing.turn(resizing.deadline_s)
    assert rank.drains == [(1, 100.0)]


def test_what_is_no_order_is_refused_and_the_next_one_is_carried_out(tmp_path: Path) -> None:
    rank = FakeRank(2)
    resizing = taking_orders(rank, tmp_path)
    wrong = tmp_path / "orders" / f"{'0' * 32}.json"
    wrong.write_text('{"type": "resize", "by": "much"}')
    os.utime(wrong, (0, 0))
    give(tmp_path, Resize(by=-1))
    resizing.turn(0.0)
    answer = answer_to(wrong)
    assert answer is not None
    assert "no order" in answer.refusal
    assert [drained for drained, _ in rank.drains] == [1]


def test_a_file_of_another_name_is_no_order_and_stays_as_it_is(tmp_path: Path) -> None:
    rank = FakeRank(2)
    resizing = taking_orders(rank, tmp_path)
    theirs = [tmp_path / "orders" / name for name in ("notes.json", "1.json", f"{'A' * 32}.json")]
    for each in theirs:
        each.write_text('{"type": "resize", "by": -1}')
    resizing.turn(0.0)
    assert rank.drains == []
    assert sorted((tmp_path / "orders").iterdir()) == sorted(theirs)
    assert {each.read_text() for each in theirs} == {'{"type": "resize", "by": -1}'}


def test_an_order_that_was_taken_back_is_not_carried_out(tmp_path: Path) -> None:
    rank = FakeRank(2)
    resizing = taking_orders(rank, tmp_path)
    take_back(give(tmp_path, Resize(by=-1)))
    resizing.turn(0.0)
    assert rank.drains == []


def test_nobody_waits_for_the_answer_to_an_order_that_was_taken_back_while_under_way(tmp_path: Path) -> None:
    rank = FakeRank(3)
    resizing = taking_orders(rank, tmp_path)
    given = give(tmp_path, Resize(by=-1))
    resizing.turn(0.0)
    take_back(given)
    rank.begin(0, 1)
    resizing.turn(0.1)
    assert [each.name for each in (tmp_path / "orders").iterdir()] == ["mallob-py.ranks"]
    assert ordered_ranks(tmp_path) == 2
    next_one = give(tmp_path, Resize(by=-2))
    resizing.turn(0.2)
    assert answer_to(next_one) is not None


def test_a_folder_that_others_may_enter_takes_no_orders(tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders").chmod(0o755)
    with pytest.raises(ServiceError, match="open to others"):
        OrderFolder(tmp_path, is_new_service=True)


def test_who_may_not_write_there_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="takes no orders"):
        give(tmp_path, Resize(by=-1))


def test_an_order_that_another_rank_has_answered_does_not_come_back(tmp_path: Path) -> None:
    slept, heir = OrderFolder(tmp_path, is_new_service=True), OrderFolder(tmp_path, is_new_service=False)
    given = give(tmp_path, Resize(by=2))
    assert slept.read(given.name) == heir.read(given.name) == Resize(by=2)
    heir.decide(given.name, Resize(to=6))
    assert heir.read(given.name) == Resize(to=6)
    departure = Departure((1, 2), 0.5, 6, 1.0)
    heir.decide(given.name, departure)
    assert heir.read(given.name) == departure
    heir.answer(given.name, Answer(before=4, after=6))
    slept.decide(given.name, Resize(to=6))
    assert heir.oldest() is None
    assert answer_to(given) == Answer(before=4, after=6)


def test_answers_are_as_they_were_written(tmp_path: Path) -> None:
    folder = OrderFolder(tmp_path, is_new_service=True)
    order = Resize(by=1, hosts=(HostShare("a"), HostShare("b", 2)), remote_shell=("rsh",))
    given = give(tmp_path, order)
    assert folder.read(given.name) == order
    departure = Departure((2, 3), 1.5, 4, 17.0)
    folder.decide(given.name, departure)
    assert folder.read(given.name) == departure
    folder.answer(given.name, Answer(before=1, after=2, took_s=0.5))
    assert answer_to(given) == Answer(before=1, after=2, took_s=0.5)
    assert answer_to(given) is None
    assert folder.oldest() is None


@pytest.mark.parametrize(
    ("count", "hosts", "spread_out"),
    [
        (3, [HostShare("a")], "aaa"),
        (5, [HostShare("a"), HostShare("b")], "ababa"),
        (5, [HostShare("a", 1), HostShare("b"), HostShare("c", 2)], "abcbc"),
        (2, [HostShare("a", 4), HostShare("b", 4)], "ab"),
    ],
)
def test_new_ranks_are_spread_over_the_hosts_in_turn(
    count: int, hosts: list[HostShare], spread_out: str
) -> None:
    assert spread(count, hosts) == list(spread_out)


@pytest.mark.parametrize(
    ("job", "command", "shell"),
    [
        ("", "", " ".join([*SSH, "n2"])),
        ("7", "", "srun --jobid=7 --nodelist n2"),
        ("7", "rsh -x", "rsh -x n2"),
    ],
)
def test_other_hosts_are_reached_by_what_the_user_names_else_by_srun_or_ssh(
    job: str, command: str, shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", job)
    monkeypatch.setenv("MALLOB_PY_HOST_NAME", "here")
    rank = FakeRank(2)
    resizing = taking_orders(rank, tmp_path)
    give(
        tmp_path,
        Resize(by=2, hosts=(HostShare("here"), HostShare("n2")), remote_shell=tuple(command.split())),
    )
    resizing.turn(0.0)
    assert rank.sites[0] == Site("here")
    assert rank.sites[1].host == "n2"
    assert set(shell.split()) <= set(rank.sites[1].shell)
    assert rank.sites[1].shell[0] == shell.split()[0]


# --- whatever becomes of an order, the rank is neither kept busy nor lost --------------------------------


def turns_until_quiet(resizing: Resizing, now: float) -> int:
    """Return how often a rank's loop would call `turn` if time stood still and no messages came."""
    for turns in range(50):
        bell = resizing.fileno()
        is_rung = bell is not None and bool(select.select([bell], [], [], 0.0)[0])
        if not is_rung and resizing.deadline_s > now:
            return turns
        resizing.turn(now)
    return 50


@pytest.mark.parametrize("watching", [Watching.AUTO, Watching.POLL])
@pytest.mark.parametrize("order", [Resize(by=2), Resize(by=-1), Drain("1", 60.0)])
def test_a_rank_is_not_kept_busy_while_an_order_is_under_way(
    order: Order, watching: Watching, tmp_path: Path
) -> None:
    rank = FakeRank(4)
    resizing = taking_orders(rank, tmp_path, watching=watching)
    give(tmp_path, order)
    assert 1 <= turns_until_quiet(resizing, 0.0) <= 3
    assert rank.grown or rank.drains
    give(tmp_path, Resize(by=-1))  # this order must wait, and must not be forgotten
    assert 1 <= turns_until_quiet(resizing, 10.0) <= 3  # by then, a polled folder has been read, too
    if rank.done is not None:
        rank.begin(*range(6))
        rank.done({})
        turns_until_quiet(resizing, 20.0)
        assert [each for each, _ in rank.drains] == [5]


class FullDisk(OrderFolder):
    """A folder of orders in which no file can be written while `is_full` is set."""

    is_full = True
    tries = 0

    def _try(self) -> None:
        self.tries += 1
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def decide(self, name: str, order: Order) -> None:
        self._try()
        super().decide(name, order)

    def answer(self, name: str, answer: Answer) -> bool:
        self._try()
        return super().answer(name, answer)


@pytest.mark.parametrize("order", [Resize(by=2), Resize(by=-1), Drain("77", 0.0)])
def test_an_order_that_cannot_be_noted_down_is_not_begun_and_tried_again_after_a_pause(
    order: Order, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rank: Any = FakeRank(4)
    folder = FullDisk(tmp_path, is_new_service=True)
    resizing = Resizing(rank, folder, [])
    given = give(tmp_path, order)
    for now in range(10):
        turns_until_quiet(resizing, float(now))
        assert now < resizing.deadline_s <= now + 1.0
    assert 5 <= folder.tries <= 10
    assert (rank.grown, rank.drains) == ([], [])
    assert capsys.readouterr().err.count("tried again") == 1
    folder.is_full = False
    turns_until_quiet(resizing, 20.0)
    assert rank.grown or rank.drains or answer_to(given)


def test_an_order_that_was_carried_out_while_the_disk_was_full_is_answered_later_and_not_begun_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rank: Any = FakeRank(2)
    folder = FullDisk(tmp_path, is_new_service=True)
    folder.is_full = False
    resizing = Resizing(rank, folder, [])
    given = give(tmp_path, Resize(by=2))
    resizing.turn(0.0)
    folder.is_full = True
    rank.begin(0, 1, 2)
    rank.done({3: "was lost"})
    for now in range(1, 10):
        turns_until_quiet(resizing, float(now))
    assert rank.grown == [2]
    assert capsys.readouterr().err.count("tried again") == 1
    other = give(tmp_path, Resize(by=-9))
    folder.is_full = False
    turns_until_quiet(resizing, 20.0)
    answer = answer_to(given)
    assert answer is not None
    assert "rank 3 was lost" in answer.refusal
    assert (answer.before, answer.after) == (2, 3)
    assert answer_to(other) is not None
    assert rank.grown == [2]


@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "dangling link", "nested", "no text"])
def test_what_lies_among_the_orders_and_is_none_is_refused_once(kind: str, tmp_path: Path) -> None:
    rank = FakeRank(2)
    resizing = taking_orders(rank, tmp_path)
    path = tmp_path / "orders" / f"{'0' * 32}.json"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text('{"type": "resize", "by": -1}')
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "link":
            path.symlink_to(elsewhere)
        case "dangling link":
            path.symlink_to(tmp_path / "nowhere")
        case "nested":
            path.write_text("[" * 100_000)
        case _:
            path.write_bytes(b'{"type": "drain", "place": "\xff", "grace_s": 0}')
    assert turns_until_quiet(resizing, 0.0) <= 3
    answer = answer_to(path)
    assert answer is not None
    assert answer.refusal
    assert turns_until_quiet(resizing, 10.0) <= 3
    assert answer_to(path) is None
    assert rank.drains == []
    assert elsewhere.exists()
    give(tmp_path, Resize(by=-1))
    turns_until_quiet(resizing, 11.0)
    assert rank.drains == [(1, 100.0)]


@pytest.mark.parametrize(
    "order",
    [
        Resize(by=1, hosts=(HostShare("-oProxyCommand=true"),)),
        Resize(by=1, hosts=(HostShare("a\0b"),)),
        Resize(by=1, hosts=(HostShare(""),)),
        Resize(by=1, hosts=(HostShare("a", -1), HostShare("b"))),
        Resize(by=3, hosts=(HostShare("a", 2), HostShare("a", 2))),
        Resize(by=1, hosts=(HostShare("a"),), remote_shell=("rsh", "a\0b")),
        Drain("9" * 5000, 0.0),
        Drain("1", -1.0),
    ],
)
def test_an_order_that_the_command_line_would_not_give_is_refused(order: Order, tmp_path: Path) -> None:
    rank = FakeRank(2)
    resizing = taking_orders(rank, tmp_path)
    given = give(tmp_path, order)
    assert turns_until_quiet(resizing, 0.0) <= 3
    answer = answer_to(given)
    assert answer is not None
    assert answer.refusal
    assert (rank.grown, rank.drains) == ([], [])
    assert not given.exists()


def test_who_gave_an_order_hears_of_its_end_although_something_else_has_the_name_of_a_file_of_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rank = FakeRank(2)
    resizing = taking_orders(rank, tmp_path)
    os.mkfifo(tmp_path / "orders" / "~mallob-py.ranks")
    given = give(tmp_path, Resize(by=1))
    turns_until_quiet(resizing, 0.0)
    rank.begin(0, 1, 2)
    assert rank.done is not None
    rank.done({})
    turns_until_quiet(resizing, 1.0)
    answer = answer_to(given)
    assert answer is not None
    assert (answer.refusal, answer.before, answer.after) == ("", 2, 3)
    assert "a link, or no file" in capsys.readouterr().err
