"""The engines of a worker: the job's result when engines die, hang or lie, or run at other workers."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_context import FakeContext

from mallob_py.kit import InputError, Payload, ProcessKilled, Result, TreeMessage
from mallob_smt import running
from mallob_smt.answering import Checked, Completed, Failed, Printed, Saying, say
from mallob_smt.engines import Strategy, Wishes
from mallob_smt.script import Script, script_from_text

SCRIPT = script_from_text(b"(set-logic QF_LIA)(check-sat)", "s.smt2")
Behaviour = Callable[[], list[Saying]]
SAT: list[Saying] = [Checked("sat"), Completed("sat\n", 0, "")]
UNSAT: list[Saying] = [Checked("unsat"), Completed("unsat\n", 0, "")]
UNKNOWN: list[Saying] = [Checked("unknown"), Completed("unknown\n", 0, "incomplete")]


def hang() -> list[Saying]:
    while True:
        pass


def sleep() -> list[Saying]:
    while True:
        time.sleep(60)


def crash() -> list[Saying]:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


class Worker(FakeContext):
    def __init__(self, payload: Payload, index: int = 0, volume: int = 1, threads: int = 1) -> None:
        super().__init__(payload, index, {})
        self.volume, self.threads = volume, threads
        self.demands: list[int] = []
        self.said: list[bytes] = []
        self.heard: list[TreeMessage] = []
        self.offered: list[tuple[Result | None, float | None]] = []

    def offer(
        self, result: Result | None = None, *, value: float | None = None, bound: float | None = None
    ) -> None:
        self.offered.append((result, value))

    def poll(self, timeout_s: float = 0.0) -> list[TreeMessage]:
        heard, self.heard = self.heard, []
        return heard

    def send_to_parent(self, data: bytes) -> None:
        self.said.append(data)

    def set_demand(self, demand: int) -> None:
        self.demands.append(demand)


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.fixture(autouse=True)
def _no_engine_is_left() -> Iterator[None]:
    before = children()
    yield
    assert children() <= before


@pytest.fixture
def behave(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that gives engines a behaviour: a list of answers, or a function; all engines count
    as installed.
    """

    def set_up(**behaviours: Behaviour | list[Saying]) -> None:
        def be_engine(script: Script, strategy: Strategy, descriptor: int) -> None:
            behaviour = behaviours[strategy.engine]
            for saying in behaviour if isinstance(behaviour, list) else behaviour():
                say(descriptor, saying)

        monkeypatch.setattr(running, "be_engine", be_engine)
        monkeypatch.setattr("mallob_smt.engines.installed_engines", lambda: tuple(behaviours))

    return set_up


def solve(agreement: int = 1, worker: Worker | None = None) -> Result:
    return running.run_engines(worker or Worker({}), SCRIPT, Wishes(agreement=agreement))


def test_an_engine_that_hangs_is_not_the_only_one_of_a_worker_alone(behave: Callable[..., None]) -> None:
    behave(z3=hang, cvc5=UNSAT)
    result = solve()
    assert (result.code, result.fields["solver"]) == (20, "cvc5")


def test_an_engine_that_dies_leaves_the_job_to_others(behave: Callable[..., None]) -> None:
    behave(z3=crash, cvc5=SAT)
    assert solve().fields["solver"] == "cvc5"


def test_if_all_die_it_is_said_of_what(behave: Callable[..., None]) -> None:
    behave(z3=lambda: os._exit(3), cvc5=[Failed("no such sort")])
    with pytest.raises(InputError, match=r"z3: its process has ended with status 3; cvc5: no such sort"):
        solve()


def test_if_an_engine_was_killed_its_worker_ends_likewise(behave: Callable[..., None]) -> None:
    behave(z3=crash, cvc5=[Failed("no such sort")])
    with pytest.raises(ProcessKilled, match=r"z3: its process was killed by SIGKILL; cvc5: no such sort"):
        solve()


def test_unknown_waits_for_others_and_is_the_answer_in_the_end(behave: Callable[..., None]) -> None:
    behave(z3=UNKNOWN, cvc5=SAT)
    assert solve().code == 10
    behave(z3=UNKNOWN, cvc5=[Failed("it cannot")])
    result = solve()
    assert (result.code, result.solution) == (0, b"unknown\n")
    assert result.fields["reason-unknown"] == "incomplete"


def test_what_is_printed_before_a_later_check_is_offered(behave: Callable[..., None]) -> None:
    second = [Printed("sat\n((a 1))\n"), Checked("unsat"), Printed("unsat\n")]
    behave(z3=[Checked("sat"), *second, Checked("sat"), Failed("tired")], cvc5=SAT)
    worker = Worker({})
    assert solve(worker=worker).code == 10
    assert [value for _, value in worker.offered] in ([1, 2], [2]), "one or two reads"
    last = worker.offered[-1][0]
    assert last is not None
    assert (last.code, last.solution) == (0, b"sat\n((a 1))\nunsat\nunknown\n")
    assert last.fields["answers"] == ["sat", "unsat", "unknown"]


def test_all_answers_of_one_read_are_told_in_one_message(
    behave: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    class WholeReader(running.SayingReader):
        def read(self, descriptor: int) -> list[Saying] | None:
            sayings = super().read(descriptor)
            while sayings and not isinstance(sayings[-1], Failed | Completed):
                sayings += super().read(descriptor) or []
            return sayings

    told: list[str] = []
    put = running.Gossip.put
    monkeypatch.setattr(running, "SayingReader", WholeReader)
    monkeypatch.setattr(running.Gossip, "put", lambda self, *it: (told.append(it[0]), put(self, *it)))
    checks = [saying for _ in range(500) for saying in (Checked("sat"), Printed("sat\n"))]
    behave(z3=[*checks, Failed("tired")], cvc5=SAT)
    worker = Worker({})
    assert solve(worker=worker).code == 10
    assert len(told) <= 2
    assert [value for _, value in worker.offered] == [500]


def test_engines_that_contradict_each_other_are_named(behave: Callable[..., None]) -> None:
    behave(z3=SAT, cvc5=UNSAT)
    with pytest.raises(InputError, match=r"check 1: (z3 says sat, cvc5 says unsat|cvc5 .*, z3 .*)"):
        solve(agreement=2)


def test_agreement_of_two_names_both(behave: Callable[..., None]) -> None:
    behave(z3=SAT, cvc5=SAT)
    result = solve(agreement=2)
    assert result.fields["agreement"] == {"wanted": 2, "engines": ["z3", "cvc5"]}


def test_a_worker_of_several_cores_runs_as_many_engines(behave: Callable[..., None]) -> None:
    behave(z3=sleep, cvc5=UNSAT)
    assert solve(worker=Worker({}, threads=2)).code == 20


@pytest.mark.parametrize(("volume", "cores", "lower"), [(2, 1, True), (2, 2, False), (1, 1, False)])
def test_an_engine_beyond_the_cores_leaves_them_to_those_that_suit_better(
    behave: Callable[..., None], monkeypatch: pytest.MonkeyPatch, volume: int, cores: int, lower: bool
) -> None:
    mine = os.nice(0)

    def tell_niceness() -> list[Saying]:
        is_lower = os.nice(0) > mine
        return [Checked("sat"), Completed(f"{is_lower}", 0, "")]

    behave(z3=sleep, cvc5=tell_niceness)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    result = solve(worker=Worker({}, index=1, volume=volume))
    assert result.solution == str(lower).encode()


def test_workers_know_what_the_others_engines_have_said(behave: Callable[..., None]) -> None:
    behave(z3=UNKNOWN, cvc5=[Failed("it cannot")])
    first = Worker({})
    solve(worker=first)
    # the second worker runs cvc5, and has only messages about Z3
    second = Worker({}, index=1, volume=2)
    second.heard = [TreeMessage(0, said) for said in first.said]
    assert solve(worker=second).solution == b"unknown\n"


def test_a_job_wants_as_many_workers_as_there_are_strategies_left(
    behave: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    behave(z3=[Failed("it cannot")], cvc5=SAT)
    monkeypatch.setattr(running, "_ALONE_S", 0.0)
    worker = Worker({})
    solve(worker=worker)
    assert worker.demands == sorted(worker.demands, reverse=True)
    assert worker.demands[0] == 6


def test_a_short_script_asks_for_no_other_workers(
    behave: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    behave(z3=SAT, cvc5=SAT)
    monkeypatch.setattr(running, "_ALONE_S", 60.0)
    worker = Worker({})
    solve(worker=worker)
    assert worker.demands == [1]


def test_a_large_transcript_that_must_wait_is_refused(behave: Callable[..., None]) -> None:
    large = "x" * ((1 << 20) + 1)
    behave(z3=[Checked("sat"), Completed(large, 1, "")], cvc5=[Failed("it cannot")])
    with pytest.raises(InputError, match="too large to be kept"):
        solve()
    behave(z3=[Checked("sat"), Completed(large, 0, "")], cvc5=sleep)
    assert len(solve().solution or b"") == len(large)


def test_without_any_engine_the_extra_is_named(behave: Callable[..., None]) -> None:
    behave()
    with pytest.raises(InputError, match=r"pip install 'mallob-py\[smt\]'"):
        Wishes.from_configuration({})
