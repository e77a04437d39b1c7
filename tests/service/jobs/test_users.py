"""Users share: queues, scaled priorities and bounds, at one client and at several."""

import math
import random
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from reachable import reachable
from seeds import seeds

from mallob_py.protocol.job_terms import JobTerms
from mallob_py.service import ServiceError
from mallob_py.service.jobs.users import AtWork, Terms, UserBook, UserRule, UserRules, read_user_rules

PES = 16


def job(number: int, user: str, priority: float = 1.0, max_demand: int = 0) -> Any:
    """Return a live job with the fields on which its user's terms depend."""
    return SimpleNamespace(id=number, user=user, terms=JobTerms(priority=priority, max_demand=max_demand))


class Book(UserBook):
    """A book of users that remembers jobs by their numbers."""

    def __init__(self, rules: UserRules, pes: int) -> None:
        super().__init__(rules, pes)
        self.known: dict[int, Any] = {}

    def terms_of(self, number: int) -> Terms:
        return self.terms(self.known[number])

    def stop(self, number: int) -> None:
        self.stops(self.known[number])


def book(default: UserRule | None = None, **users: UserRule) -> Book:
    """Return the book of one client with a job of another user at work."""
    made = Book(UserRules(default or UserRule(), users), PES)
    begin(made, "another", 10**9)
    return made


def begin(users: Book, user: str, *numbers: int, priority: float = 1.0, max_demand: int = 0) -> list[Terms]:
    """Begin jobs; return the terms with which they begin."""
    jobs = [job(number, user, priority, max_demand) for number in numbers]
    for one in jobs:
        users.known[one.id] = one
        users.begins(one)
    return [users.terms(one) for one in jobs]


def test_the_priorities_of_a_user_s_jobs_add_up_to_the_user_s_weight() -> None:
    users = book(alice=UserRule(weight=3.0))
    begin(users, "alice", 1)
    begin(users, "alice", 2, priority=2.0)
    begin(users, "bob", 3, 4)
    changes = users.changes()
    assert changes[1].priority == 1.0
    assert users.terms_of(2).priority == 2.0
    assert users.terms_of(3).priority == users.terms_of(4).priority == 0.5


def test_a_user_s_priorities_are_as_they_say_until_another_user_comes_and_until_all_have_gone() -> None:
    users = Book(UserRules(), PES)
    assert begin(users, "u", 1, 2, priority=3.0) == [Terms(3.0, 0), Terms(3.0, 0)]
    assert users.changes() == {}
    assert begin(users, "v", 3) == [Terms(1.0, 0)]
    assert users.changes() == {1: Terms(0.5, 0), 2: Terms(0.5, 0)}
    users.stop(3)
    assert begin(users, "u", 4, priority=6.0) == [Terms(0.5, 0)]
    assert users.changes() == {1: Terms(0.25, 0), 2: Terms(0.25, 0)}
    for job in (1, 2, 4):
        users.stop(job)
    assert begin(users, "u", 5, priority=3.0) == [Terms(3.0, 0)]


def test_changes_come_in_an_order_that_a_replay_repeats() -> None:
    users = book()
    for number, user in enumerate("hgfedcba"):
        begin(users, user, number)
    users.changes()
    for number, user in enumerate("hgfedcba"):
        begin(users, user, 10 + number)
    assert list(users.changes()) == list(reversed(range(8)))


def test_a_job_that_is_given_up_has_no_part_until_it_begins_again() -> None:
    users = book()
    assert begin(users, "u", 1, 2) == [Terms(0.5, 0), Terms(0.5, 0)]
    assert users.changes() == {}
    users.stop(2)
    assert users.changes() == {1: Terms(1.0, 0)}
    users.begins(users.known[2])
    assert users.terms_of(2) == Terms(0.5, 0)


def test_a_job_that_is_alone_has_its_user_s_weight_whatever_its_priority() -> None:
    users = book()
    assert begin(users, "u", 1, priority=1e9) == [Terms(1.0, 0)]
    users.stop(1)
    assert begin(users, "u", 2, priority=1e-9) == [Terms(1.0, 0)]


def test_a_share_of_the_pes_is_distributed_fairly_among_the_user_s_jobs() -> None:
    users = book(UserRule(share=0.5))
    assert begin(users, "u", 1)[0].max_demand == PES // 2
    begin(users, "u", 2, priority=3.0)
    assert users.changes()[1] == Terms(0.25, 2)
    assert users.terms_of(2) == Terms(0.75, 6)
    begin(users, "u", 3, priority=4.0, max_demand=1)
    users.changes()
    assert [users.terms_of(job).max_demand for job in (1, 2, 3)] == [1, 6, 1]


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
    assert all(math.isclose(users.terms_of(job).priority, 1 / 23) for job in range(23))


def test_priorities_of_very_different_sizes_leave_no_rounding_behind() -> None:
    users = book()
    begin(users, "u", 1, priority=1e9)
    begin(users, "u", 2, priority=1e-9)
    users.stop(1)
    begin(users, "u", 3, priority=1e-9)
    assert 0 < users.terms_of(3).priority <= 1.0
    assert users.changes()[2].priority == 0.5
    assert users.terms_of(3).priority == 0.5


def test_each_client_keeps_its_part_of_a_limit_and_at_least_one_job() -> None:
    rules = UserRules(UserRule(active_jobs=5), {"b": UserRule(share=0.25), "c": UserRule()})
    assert [UserBook(rules, PES, clients).limit_of("a") for clients in (1, 2, 9)] == [5, 2, 1]
    assert UserBook(rules, PES).limit_of("b") == 4
    assert UserBook(rules, PES).limit_of("c") == math.inf
    users = UserBook(rules, PES)
    users.follow(2 * PES, ())
    assert users.limit_of("b") == 8


def test_users_who_are_not_at_work_anywhere_are_forgotten() -> None:
    users = UserBook(UserRules(UserRule(active_jobs=1)), PES)
    jobs = [job(number, f"user {number}") for number in range(100)]
    for one in jobs:
        users.begins(one)
        users.terms(one)
    for one in jobs:
        users.stops(one)
    assert users.changes() == {}
    assert not reachable(users, lambda one: isinstance(one, Terms) or "user " in str(one)[:6])


class Net:
    """Clients whose messages arrive late, in any order that the channels permit; clients may begin anew."""

    def __init__(self, rules: UserRules, clients: int) -> None:
        self._rules = rules
        self.books = [UserBook(rules, PES, clients) for _ in range(clients)]
        self.told: dict[int, Terms] = {}
        self._channels: dict[tuple[int, int], deque[AtWork]] = {}

    def serve(self, client: int) -> None:
        """Do for a client what its service does in a turn."""
        self.told |= self.books[client].changes()
        if (work := self.books[client].work_message()) is not None:
            for other in range(len(self.books)):
                if other != client:
                    self._channels.setdefault((client, other), deque()).append(work)

    def begin_anew(self, client: int) -> None:
        for pair, messages in self._channels.items():
            if client in pair:
                messages.clear()
        self.books[client] = UserBook(self._rules, PES, len(self.books))
        for other, users in enumerate(self.books):
            if other != client:
                users.follow(PES, {client})
                self.serve(other)

    def deliver_one(self, choose: random.Random) -> bool:
        waiting = [pair for pair, messages in self._channels.items() if messages]
        if waiting:
            source, dest = choose.choice(waiting)
            self.books[dest].hear(source, self._channels[source, dest].popleft())
            self.serve(dest)
        return bool(waiting)

    def settle(self) -> None:
        for client in range(len(self.books)):
            self.serve(client)
        while self.deliver_one(random.Random(0)):
            pass


@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("seed", seeds(40))
def test_whatever_comes_and_goes_shares_are_right_in_the_end(seed: int, moves: bool) -> None:
    """The messages of three clients arrive late, and clients may be lost and begin anew."""
    choose = random.Random(seed)
    rules = UserRules(
        UserRule(), {"a": UserRule(weight=2.0), "b": UserRule(share=0.5), "c": UserRule(weight=0.1)}
    )
    net = Net(rules, 3)
    live: list[dict[int, Any]] = [{}, {}, {}]
    for number in range(400):
        here = choose.randrange(3)
        if live[here] and choose.random() < 0.5:
            net.books[here].stops(live[here].pop(choose.choice(list(live[here]))))
        else:
            one = job(number, choose.choice("abcd"), choose.choice((0.1, 1.0, 7.0)), choose.choice((0, 1, 5)))
            live[here][number] = one
            net.books[here].begins(one)
            net.told[number] = net.books[here].terms(one)
        net.serve(here)
        if moves and choose.random() < 0.1:
            lost = choose.randrange(3)
            live[lost].clear()
            net.begin_anew(lost)
        for _ in range(choose.randrange(6)):
            net.deliver_one(choose)
    net.settle()
    for user in "abcd":
        jobs = [one for each in live for one in each.values() if one.user == user]
        rule, total = rules.of(user), sum(one.terms.priority for one in jobs)
        for one in jobs:
            exact = rule.weight * one.terms.priority / total
            assert exact / 1.1 <= net.told[one.id].priority <= exact * 1.1
        if rule.share < 1:
            assert sum(net.told[one.id].max_demand for one in jobs) <= max(len(jobs), rule.share * PES)
    for users, each in zip(net.books, live, strict=True):
        for one in each.values():
            users.stops(one)
    net.settle()
    assert not reachable(net.books, lambda one: isinstance(one, Terms))


# --- the file of users ------------------------------------------------------------------------


def rules_of(tmp_path: Path, text: str) -> UserRules:
    path = tmp_path / "users.toml"
    path.write_text(text)
    return read_user_rules(path)


def test_a_file_of_users_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    assert rules_of(tmp_path, "\ufeff[default]\nactive-jobs = 5\n").of("bob") == UserRule(active_jobs=5)


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
