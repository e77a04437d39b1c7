"""The bags that come with mallob-py: known answers, and the laws of bags. UTS has tests of its own."""

import random
import resource
import subprocess
import sys
from typing import Any

import pytest

from mallob_bags.betweenness import BetweennessApplication, BetweennessBag
from mallob_bags.numbers import whole_number
from mallob_bags.pi import CHUNK_POINTS, PiApplication
from mallob_bags.queens import QueensApplication, QueensBag
from mallob_bags.ranges import NumberedBag
from mallob_bags.uts import UtsApplication
from mallob_py.kit import InputError, JobInput
from mallob_py.kit.bags import Bag, BagApplication, BrokenLaw, check_bag

SOLUTIONS = {1: 1, 2: 0, 3: 0, 4: 2, 5: 10, 6: 4, 7: 40, 8: 92, 9: 352}


def emptied(bag: Bag, count: int = 1000) -> Any:
    while not bag.is_empty():
        assert bag.process(count) > 0
    return bag.take_result()


def first_bag(n: int) -> QueensBag:
    bag = QueensApplication().first_bag({}, {"n": n})
    assert isinstance(bag, QueensBag)
    return bag


@pytest.mark.parametrize("n", SOLUTIONS)
def test_queens_are_counted(n: int) -> None:
    assert emptied(first_bag(n), count=7) == SOLUTIONS[n]


def test_parts_of_a_bag_are_the_bag() -> None:
    bag, total = first_bag(9), 0
    bag.process(5)
    parts = bag.split_into(3)
    assert len(parts) == 3
    for part in parts:
        again = QueensApplication().bag_from_bytes(part.to_bytes(), {}, {"n": 9})
        assert isinstance(again, QueensBag)
        total += emptied(again)
    assert total + emptied(bag) == SOLUTIONS[9]


def test_a_bag_takes_in_another() -> None:
    bag = first_bag(8)
    bag.process(20)
    other = bag.split()
    assert other is not None
    bag.merge(other)
    assert emptied(bag) == SOLUTIONS[8]


AT_WORK = """
import sys
from mallob_py.applications import OURS, imported
from mallob_py.kit import JobInput

application, configuration = imported(OURS[sys.argv[1]])(), {"n": 8, "depth": 10, "points": 10**6}
application.prepare()
before = set(sys.modules)
payload = application.read(JobInput(configuration=configuration))
bag = application.first_bag(payload, configuration)
bag.process(10)
other = application.bag_from_bytes(bag.split().to_bytes(), payload, configuration)
other.process(10)
bag.merge(other)
bag.take_result()
print(*set(sys.modules) - before)
"""


@pytest.mark.parametrize("name", ["BC", "PI", "QUEENS", "UTS"])
def test_a_prepared_worker_loads_nothing_at_its_first_tasks(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", AT_WORK, name], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("n", [0, -1, 10**9, "many", True, None, 2.5])
def test_numbers_out_of_bounds_are_refused_by_name(n: object) -> None:
    with pytest.raises(InputError, match="'n' "):
        QueensApplication().check({"n": n})


@pytest.mark.parametrize(
    "application", [BetweennessApplication, PiApplication, QueensApplication, UtsApplication]
)
def test_a_misspelt_key_is_refused_rather_than_its_default_taken(application: type[BagApplication]) -> None:
    with pytest.raises(InputError, match=r"unknown key 'dept'; known are .*(n|seed)"):
        application().check({"dept": 13, "n": 8})


def test_input_is_refused() -> None:
    with pytest.raises(InputError, match="takes no input"):
        QueensApplication().read(JobInput(files=["x"]))


#: n -> sum of all centralities, largest centrality, its vertex
BETWEENNESS = {8: (148019, 3315.110595, 4), 10: (2524531, 48373.625235, 0)}


def betweenness(n: int) -> tuple[BetweennessApplication, dict[str, int], Any]:
    application, configuration = BetweennessApplication(), {"n": n}
    application.check(configuration)
    return application, configuration, application.read(JobInput(configuration=configuration))


@pytest.mark.parametrize("n", BETWEENNESS)
def test_betweenness_is_known(n: int) -> None:
    application, configuration, graph = betweenness(n)
    result = emptied(application.first_bag(graph, configuration), count=100_000)
    fields = application.fields(result, configuration)
    assert (fields["value"], fields["max"], fields["vertex"]) == BETWEENNESS[n]


def shared(application: BagApplication, payload: Any, configuration: dict[str, int], seed: int) -> Any:
    """Return the result after bags were processed in parts, split and merged at random."""
    rng = random.Random(seed)
    bags, total = [application.first_bag(payload, configuration)], None
    while bags:
        bag = bags.pop(rng.randrange(len(bags)))
        bag.process(rng.randrange(1, 3000))
        result = bag.take_result()
        total = result if total is None else application.fold(total, result)
        data = bag.to_bytes()
        if rng.random() < 0.1:  # another worker continues the bag
            bag = application.bag_from_bytes(data, payload, configuration)
        for given in bag.split_into(rng.randrange(3)):
            bags.append(application.bag_from_bytes(given.to_bytes(), payload, configuration))
        if len(bags) > 5:
            bag.merge(application.bag_from_bytes(bags.pop().to_bytes(), payload, configuration))
        if not bag.is_empty():
            bags.append(bag)
    return total


def test_betweenness_is_the_same_to_the_last_bit_in_any_order_and_when_sources_are_done_in_parts() -> None:
    application, configuration, graph = betweenness(8)
    bag = application.first_bag(graph, configuration)
    assert isinstance(bag, BetweennessBag)
    bag.process(1)
    assert bag.take_result().sum() == 0, "a source begun is in no result"
    assert not bag.is_empty()
    one = emptied(bag, count=10**9)
    for seed in range(5):
        assert (shared(application, graph, configuration, seed) == one).all()


def test_tasks_of_betweenness_are_the_same_whether_expected_asked_for_or_done() -> None:
    application, configuration, graph = betweenness(8)
    bag = application.first_bag(graph, configuration)
    expected = bag.expected_tasks()
    assert bag.process(int(expected) // 4) == pytest.approx(expected / 4, rel=0.05)
    assert 0.6 * expected < bag.expected_tasks() < 0.9 * expected


def test_a_bag_that_expects_sources_and_counts_edges_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    application, configuration, graph = betweenness(8)
    assert "merge, expected_tasks, take_result" in check_bag(application, configuration, graph)
    monkeypatch.setattr(BetweennessBag, "expected_tasks", NumberedBag.expected_tasks)
    with pytest.raises(BrokenLaw, match=r"for a piece of BetweennessBag, they give \d and \d+ tasks"):
        check_bag(application, configuration, graph)


def test_a_graph_for_which_there_is_no_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mallob_bags.betweenness._available_bytes", lambda: 1 << 30)
    BetweennessApplication().check({"n": 20})
    with pytest.raises(InputError, match=r"2\^24 vertices takes 6144 MiB, and 1024 MiB are free"):
        BetweennessApplication().check({"n": 24})


def test_hits_do_not_depend_on_who_draws_them() -> None:
    application, configuration = PiApplication(), {"points": 50 * CHUNK_POINTS + 7, "seed": 3}
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    hits = emptied(application.first_bag({}, configuration), count=3)
    assert hits == 1287679
    # Without reuse of memory, the arrays of each of the 50 chunks would cause 220 page faults.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults < 50 * 50
    for seed in range(3):
        assert shared(application, {}, configuration, seed) == hits
    fields = application.fields(hits, configuration)
    assert abs(fields["value"] - 3.14159265) < 4 * fields["error"]


@pytest.mark.parametrize("parts", [1, 3, 9, 20])
def test_an_even_start_gives_all_as_much(parts: int) -> None:
    configuration = {"points": 10 * CHUNK_POINTS}
    bag = PiApplication().first_bag({}, configuration)
    bags = [bag, *bag.split_into(parts)]
    chunks = [part.process(1000) for part in bags]
    assert len(bags) == min(parts + 1, 10)
    assert sum(chunks) == 10
    assert max(chunks[1:]) - min(chunks[1:]) == 0


@pytest.mark.parametrize(
    ("application", "field"),
    [(PiApplication, "points"), (PiApplication, "seed"), (BetweennessApplication, "n")],
)
@pytest.mark.parametrize("value", [-1, 10**20, "many", True, None, 2.5])
def test_bad_numbers_are_refused_by_name(
    application: type[BagApplication], field: str, value: object
) -> None:
    with pytest.raises(InputError, match=f"'{field}' "):
        application().check({field: value})


def test_they_need_no_numba() -> None:
    script = """
import sys
sys.modules["numba"] = None
from mallob_bags.betweenness import BetweennessApplication
from mallob_bags.queens import QueensApplication
from mallob_py.kit import JobInput
for application, configuration in ((BetweennessApplication(), {"n": 6}), (QueensApplication(), {"n": 6})):
    application.prepare()
    payload = application.read(JobInput(configuration=configuration))
    bag = application.first_bag(payload, configuration)
    while not bag.is_empty():
        bag.process(1000)
    print(application.fields(bag.take_result(), configuration))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    application, configuration, graph = betweenness(6)
    fields = application.fields(emptied(application.first_bag(graph, configuration)), configuration)
    slower = {"kernel": "python, slower than numba, which the extra 'fast' installs"}
    assert done.stdout.splitlines() == [str(dict(fields) | slower), str({"value": 4} | slower)]


@pytest.mark.parametrize("points", ["--5", "9" * 5000], ids=["signs", "digits"])
def test_a_text_that_python_reads_as_no_number_is_refused_in_one_line(points: str) -> None:
    with pytest.raises(InputError, match="'points' must be a whole number"):
        whole_number({"points": points}, "points", 1, 9)
