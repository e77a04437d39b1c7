"""Users share: queues, scaled priorities and bounds, at one client and at several."""

from __future__ import annotations

import math
import random
import zlib
from collections import deque
from pathlib import Path

import pytest
from reachable import reachable
from seeds import seeds

from mallob_py.service import ServiceError
from mallob_py.service.jobs.users import (
    Asked,
    Terms,
    UserBook,
    UserMessage,
    UserRule,
    UserRules,
    read_user_rules,
)

PES = 16


def book(default: UserRule | None = None, **users: UserRule) -> UserBook:
    """One client's, at which another user has a job at work."""
    made = UserBook(UserRules(default or UserRule(), users), PES)
    begin(made, "another", 10**9)
    return made


def begun(users: UserBook) -> list[int]:
    """The jobs that may begin, and do."""
    jobs = users.admitted()
    for job in jobs:
        users.begins(job)
    return jobs


def begin(users: UserBook, user: str, *jobs: int, priority: float = 1.0, max_demand: int = 0) -> list[Terms]:
    """Queue jobs that may begin at once; what they begin with."""
    for job in jobs:
        users.ask(job, user, priority, max_demand)
    assert begun(users) == list(jobs)
    return [users.terms(job) for job in jobs]


class Net:
    """Clients that hear each other at once, or later in whatever order the channels allow.

    They may be lost and begin anew: as on ranks, each hears of it at some time, but before it hears any
    message of somebody who has heard of it.
    """

    def __init__(self, rules: UserRules, clients: int) -> None:
        self.books = [UserBook(rules, PES, client, clients) for client in range(clients)]
        self.told: dict[int, Terms] = {}
        self._rules = rules
        #: with the sender's generation
        self._channels: dict[tuple[int, int], deque[tuple[int, UserMessage]]] = {}
        #: who was lost, generation by generation; and in which one each client is, and has begun
        self._moves: list[set[int]] = []
        self._generation = [0] * clients
        self._begun_in = [0] * clients
        #: by client that is lost and has not begun anew yet: those that went on
        self.absent: dict[int, set[int]] = {}

    def move(self, *clients: int) -> None:
        """These are lost, and begin anew at once."""
        self.lose(*clients)
        for client in clients:
            self.begin_anew(client)

    def lose(self, *clients: int) -> None:
        self._moves.append(set(clients))
        for others in self.absent.values():
            others.difference_update(clients)
        for client in clients:
            self._generation[client] = self._begun_in[client] = len(self._moves)
            self.absent[client] = set(range(len(self.books))).difference(clients)
            for pair, messages in self._channels.items():
                if client in pair:
                    messages.clear()

    def begin_anew(self, client: int) -> None:
        others = self.absent.pop(client)
        self._generation[client] = len(self._moves)
        self.books[client] = UserBook(self._rules, PES, client, len(self.books), others)

    def follow(self, client: int, generation: int | None = None) -> None:
        """It hears of all changes, or of those so far."""
        if client in self.absent:
            return
        generation = len(self._moves) if generation is None else generation
        while self._generation[client] < generation:
            moved = self._moves[self._generation[client]]
            self._generation[client] += 1
            self.books[client].follow(PES, moved)
        self.serve(client)

    def _send(self, source: int, dest: int, message: UserMessage) -> None:
        if self._generation[source] >= self._begun_in[dest]:  # else it goes to a rank that is gone
            sent = self._generation[source], message
            self._channels.setdefault((source, dest), deque()).append(sent)

    def serve(self, client: int) -> None:
        """What a service does in its turn."""
        book = self.books[client]
        while book.admission.admitted or book.admission.messages:
            self.told |= {job: book.terms(job) for job in begun(book)}
            for other, message in book.urgent_messages():
                self._send(client, other, message)
        self.told |= book.changes()
        if (work := book.work_message()) is not None:
            for other in range(len(self.books)):
                if other != client:
                    self._send(client, other, work)

    def deliver_one(self, choose: random.Random) -> bool:
        waiting = [
            (source, dest)
            for (source, dest), messages in self._channels.items()
            if messages and dest not in self.absent
        ]
        if waiting:
            source, dest = choose.choice(waiting)
            generation, message = self._channels[source, dest].popleft()
            self.follow(dest, max(generation, self._generation[dest]))
            self.books[dest].hear(source, message)
            self.serve(dest)
        return bool(waiting)

    def settle(self) -> None:
        for client in range(len(self.books)):
            self.follow(client)
        while self.deliver_one(random.Random(0)):
            pass


def test_the_priorities_of_a_user_s_jobs_add_up_to_the_user_s_weight() -> None:
    users = book(alice=UserRule(weight=3.0))
    begin(users, "alice", 1)
    begin(users, "alice", 2, priority=2.0)
    begin(users, "bob", 3, 4)
    changes = users.changes()
    assert changes[1].priority == 1.0
    assert users.terms(2).priority == 2.0
    assert users.terms(3).priority == users.terms(4).priority == 0.5


def test_a_user_s_priorities_are_as_they_say_until_another_user_comes_and_until_all_have_gone() -> None:
    users = UserBook(UserRules(), PES)
    assert begin(users, "u", 1, 2, priority=3.0) == [Terms(3.0, 0), Terms(3.0, 0)]
    assert users.changes() == {}
    assert begin(users, "v", 3) == [Terms(1.0, 0)]
    assert users.changes() == {1: Terms(0.5, 0), 2: Terms(0.5, 0)}
    users.ended(3)
    assert begin(users, "u", 4, priority=6.0) == [Terms(0.5, 0)]
    assert users.changes() == {1: Terms(0.25, 0), 2: Terms(0.25, 0)}
    for job in (1, 2, 4):
        users.ended(job)
    assert begin(users, "u", 5, priority=3.0) == [Terms(3.0, 0)]


def test_a_job_that_is_given_up_has_no_part_until_it_begins_again() -> None:
    users = book()
    assert begin(users, "u", 1, 2) == [Terms(0.5, 0), Terms(0.5, 0)]
    assert users.changes() == {}
    users.rests(2)
    assert users.changes() == {1: Terms(1.0, 0)}
    users.begins(2)
    assert users.terms(2) == Terms(0.5, 0)


def test_a_job_that_is_alone_has_its_user_s_weight_whatever_its_priority() -> None:
    users = book()
    assert begin(users, "u", 1, priority=1e9) == [Terms(1.0, 0)]
    users.ended(1)
    assert begin(users, "u", 2, priority=1e-9) == [Terms(1.0, 0)]


def test_further_jobs_wait_for_those_at_work_the_most_important_first() -> None:
    users = book(UserRule(active_jobs=2))
    begin(users, "u", 1, 2)
    users.ask(3, "u", 1.0, 0)
    users.ask(4, "u", 5.0, 0)
    users.ask(5, "u", 1.0, 0)
    assert begun(users) == []
    begin(users, "v", 6)
    users.ended(1)
    assert begun(users) == [4]
    users.ended(2)
    users.ended(4)
    assert begun(users) == [3, 5]


def test_a_job_that_ends_in_the_queue_lets_the_next_one_pass() -> None:
    users = book(UserRule(active_jobs=1))
    begin(users, "u", 1)
    users.ask(2, "u", 1.0, 0)
    users.ask(3, "u", 1.0, 0)
    users.ended(2)
    users.ended(1)
    assert begun(users) == [3]


def test_a_share_of_the_pes_is_distributed_fairly_among_the_user_s_jobs() -> None:
    users = book(UserRule(share=0.5))
    assert begin(users, "u", 1)[0].max_demand == PES // 2
    begin(users, "u", 2, priority=3.0)
    assert users.changes()[1] == Terms(0.25, 2)
    assert users.terms(2) == Terms(0.75, 6)
    begin(users, "u", 3, priority=4.0, max_demand=1)
    users.changes()
    assert [users.terms(job).max_demand for job in (1, 2, 3)] == [1, 6, 1]


def test_no_more_jobs_are_at_work_than_a_share_has_pes() -> None:
    users = book(UserRule(share=0.2))
    begin(users, "u", 1, 2, 3)
    users.ask(4, "u", 1.0, 0)
    assert begun(users) == []
    assert [users.terms(job).max_demand for job in (1, 2, 3)] == [1, 1, 1]


def test_the_smallest_share_is_one_pe() -> None:
    assert begin(book(UserRule(share=0.001)), "u", 1)[0].max_demand == 1


def test_small_changes_are_no_news_but_add_up() -> None:
    users = book()
    begin(users, "u", *range(20))
    users.changes()
    begin(users, "u", 20)
    assert users.changes() == {}
    begin(users, "u", 21, 22)
    assert users.changes().keys() >= set(range(20))
    assert all(math.isclose(users.terms(job).priority, 1 / 23) for job in range(23))


def test_priorities_of_very_different_sizes_leave_no_rounding_behind() -> None:
    users = book()
    begin(users, "u", 1, priority=1e9)
    begin(users, "u", 2, priority=1e-9)
    users.ended(1)
    begin(users, "u", 3, priority=1e-9)
    assert 0 < users.terms(3).priority <= 1.0
    assert users.changes()[2].priority == 0.5
    assert users.terms(3).priority == 0.5


def test_two_clients_keep_the_limits_together() -> None:
    net = Net(UserRules(UserRule(active_jobs=3, share=0.5)), 2)
    one, other = net.books
    other.ask(99, "another", 1.0, 1)
    one.ask(1, "u", 1.0, 0)
    one.ask(2, "u", 1.0, 0)
    net.settle()
    other.ask(11, "u", 2.0, 0)
    other.ask(12, "u", 1.0, 0)
    net.settle()
    another = {99: Terms(1.0, 1)}
    assert net.told == {1: Terms(0.25, 2), 2: Terms(0.25, 2), 11: Terms(0.5, 3)} | another
    one.ended(1)
    net.settle()
    assert net.told.keys() == {1, 2, 11, 12, 99}


def test_users_who_are_not_at_work_anywhere_are_forgotten() -> None:
    users = UserBook(UserRules(UserRule(active_jobs=1)), PES)
    for job in range(100):
        users.ask(job, f"user {job}", 1.0, 0)
    for job in range(0, 100, 2):
        users.ended(job)
    assert sorted(begun(users)) == list(range(1, 100, 2))
    for job in range(1, 100, 2):
        users.ended(job)
    assert users.changes() == {}
    assert not reachable(users, lambda one: isinstance(one, Terms) or "user " in str(one)[:6])


def test_a_client_that_begins_anew_hears_what_is_at_work_elsewhere_before_it_lets_anybody_begin() -> None:
    net = Net(UserRules(UserRule(active_jobs=1)), 2)
    home = zlib.crc32(b"u") % 2
    other = 1 - home
    net.books[other].ask(1, "u", 1.0, 0)
    net.settle()
    net.move(home)
    net.books[home].ask(2, "u", 9.0, 0)
    net.serve(home)
    assert net.told.keys() == {1}
    net.settle()
    assert net.told.keys() == {1}
    net.books[other].ended(1)
    net.settle()
    assert net.told.keys() == {1, 2}


def test_what_a_client_that_begins_anew_had_at_work_is_not_counted_any_more() -> None:
    net = Net(UserRules(UserRule(active_jobs=1)), 2)
    home = zlib.crc32(b"u") % 2
    other = 1 - home
    net.books[other].ask(1, "u", 1.0, 0)
    net.settle()
    net.move(other)
    net.books[other].ask(1, "u", 1.0, 0)
    net.told.clear()
    net.settle()
    assert net.told.keys() == {1}


@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("seed", seeds(40))
def test_whatever_comes_and_goes_limits_hold_and_shares_are_right_in_the_end(seed: int, moves: bool) -> None:
    """Three clients whose messages take their time, and who may be lost and begin anew."""
    choose = random.Random(seed)
    rules = UserRules(
        UserRule(),
        {
            "a": UserRule(active_jobs=4, weight=2.0),
            "b": UserRule(share=0.5),
            "c": UserRule(share=0.1, weight=0.1),
        },
    )
    net = Net(rules, 3)
    live: list[dict[int, tuple[str, float]]] = [{}, {}, {}]

    def at_work(user: str) -> dict[int, float]:
        jobs = [job for each in live for job in each.items()]
        return {job: priority for job, (owner, priority) in jobs if owner == user and job in net.told}

    for job in range(400):
        here = choose.randrange(3)
        if here in net.absent:
            net.begin_anew(here)
            for again, (user, priority) in live[here].items():
                net.books[here].ask(again, user, priority, choose.choice((0, 1, 5)))
        if live[here] and choose.random() < 0.5:
            ending = choose.choice(list(live[here]))
            del live[here][ending]
            net.books[here].ended(ending)
        else:
            user, priority = choose.choice("abcd"), choose.choice((0.1, 1.0, 7.0))
            live[here][job] = user, priority
            net.books[here].ask(job, user, priority, choose.choice((0, 1, 5)))
        net.serve(here)
        if moves and choose.random() < 0.1:
            lost = choose.sample(range(3), choose.choice((1, 1, 2)))
            net.lose(*lost)
            for client in lost:
                for again in live[client]:
                    net.told.pop(again, None)
        if choose.random() < 0.3:
            net.follow(choose.randrange(3))
        for _ in range(choose.randrange(6)):
            net.deliver_one(choose)
        assert len(at_work("a")) <= 4
        assert len(at_work("b")) <= PES // 2
        assert len(at_work("c")) <= 1
    for client in list(net.absent):
        net.begin_anew(client)
        for again, (user, priority) in live[client].items():
            net.books[client].ask(again, user, priority, 0)
    net.settle()
    for user in "abcd":
        jobs, rule = at_work(user), rules.of(user)
        for job, priority in jobs.items():
            exact = rule.weight * priority / sum(jobs.values())
            assert exact / 1.1 <= net.told[job].priority <= exact * 1.1
        limit = {"a": 4, "b": PES // 2, "c": 1}.get(user, 400)
        assert len(jobs) == min(limit, sum(owner == user for each in live for owner, _ in each.values()))
        if rule.share < 1:
            assert sum(net.told[job].max_demand for job in jobs) <= rule.share * PES
    for each, jobs_here in zip(net.books, live, strict=True):
        for job in jobs_here:
            each.ended(job)
    net.settle()
    assert not reachable(net.books, lambda one: isinstance(one, Terms | Asked))


# --- the file ---------------------------------------------------------------------------------


def rules_of(tmp_path: Path, text: str) -> UserRules:
    path = tmp_path / "users.toml"
    path.write_text(text)
    return read_user_rules(path)


def test_what_a_user_s_table_leaves_out_is_as_in_the_default(tmp_path: Path) -> None:
    rules = rules_of(
        tmp_path, "[default]\nactive-jobs = 5\nshare = 0.5\n[users.alice]\nweight = 2\nshare = 1.0\n"
    )
    assert rules.of("bob") == UserRule(active_jobs=5, share=0.5)
    assert rules.of("alice") == UserRule(weight=2.0, active_jobs=5, share=1.0)


def test_an_empty_file_shares_alike(tmp_path: Path) -> None:
    assert rules_of(tmp_path, "").of("anybody") == UserRule()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[default]\nweigth = 1", ["[default]", "weigth"]),
        ("[default]\nweight = 0", ["[default] weight", ">= "]),
        ("[default]\nweight = 'much'", ["[default] weight", "float"]),
        ("[users.eve]\nshare = 1.5", ["[users.eve] share", "<= 1"]),
        ("[users.eve]\nshare = 0", ["[users.eve] share", "> 0"]),
        ("[users.eve]\nactive-jobs = 0", ["[users.eve] active-jobs", ">= 1"]),
        ("[users]\neve = 2", ["users"]),
        ("[user.eve]\nshare = 1", ["user"]),
        ("share = ", ["not TOML"]),
    ],
)
def test_a_wrong_file_is_one_sentence_that_names_the_key(text: str, words: list[str], tmp_path: Path) -> None:
    with pytest.raises(ServiceError) as raised:
        rules_of(tmp_path, text)
    message = str(raised.value)
    assert "\n" not in message
    assert "users.toml" in message
    assert all(word in message for word in words), message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match=r"nobody\.toml cannot be read: No such file"):
        read_user_rules(tmp_path / "nobody.toml")
