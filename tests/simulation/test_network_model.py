"""The network model: distances, jitter, slow ranks, and the costs of messages at sender and receiver."""

from statistics import fmean

import pytest
from stories import heard_by, post

from mallob_py.protocol.effects import Send
from mallob_py.protocol.messages import TokenReturned, VoidToken
from mallob_py.protocol.stimuli import Tick
from mallob_py.simulation.cluster import Cluster
from mallob_py.simulation.delays import NetworkModel
from mallob_py.simulation.setting import Faults, Network, Processes, Setting

#: network with round numbers and without jitter
PLAIN = Network(
    same_rank_us=1.0, same_host_us=10.0, other_host_us=100.0, jitter_us=0.0, handling_us=0.0, sending_us=0.0
)


def model(**changes: object) -> NetworkModel:
    given: dict[str, object] = {"pes": 8, "pes_per_host": 4, "network": PLAIN, **changes}
    return NetworkModel(Setting(**given))


def at_rest(setting: Setting) -> Cluster:
    cluster = Cluster(
        setting.pes,
        setting.seed,
        setting.protocol,
        NetworkModel(setting),
        capacities=setting.rank_capacities(),
    )
    cluster.settle()
    cluster.run(until_s=cluster.now + 1.0)
    return cluster


# --- times -------------------------------------------------------------------------------------


def test_a_message_within_a_host_takes_less_than_one_between_hosts() -> None:
    times = model()
    assert times.message_s(0, 3) == pytest.approx(10e-6)
    assert times.message_s(3, 4) == pytest.approx(100e-6)


def test_pes_per_host_says_where_a_host_ends() -> None:
    times = model(pes_per_host=2)
    assert times.message_s(0, 1) == pytest.approx(10e-6)
    assert times.message_s(1, 2) == pytest.approx(100e-6)


def test_jitter_only_adds_and_has_the_given_mean() -> None:
    times = model(network=Network(same_host_us=10.0, jitter_us=5.0))
    drawn_us = [1e6 * times.message_s(0, 1) - 10.0 for _ in range(100_000)]
    assert min(drawn_us) >= -1e-9
    assert fmean(drawn_us) == pytest.approx(5.0, rel=0.05)


def test_some_messages_are_delayed_as_often_as_the_faults_say() -> None:
    times = model(faults=Faults(delayed_messages=0.1, delay_ms=7.0))
    drawn_s = [times.message_s(0, 1) for _ in range(20_000)]
    assert set(round(time_s, 9) for time_s in drawn_s) == {10e-6, 7.01e-3}
    assert fmean(time_s > 1e-3 for time_s in drawn_s) == pytest.approx(0.1, rel=0.1)


def test_the_same_seed_draws_the_same_times_and_another_seed_others() -> None:
    first, same, other = (model(network=Network(), seed=seed) for seed in (1, 1, 2))
    drawn = [[times.message_s(0, 1) for _ in range(100)] for times in (first, same, other)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_processes_take_from_half_to_one_and_a_half_of_their_time() -> None:
    times = model(processes=Processes(start_ms=10.0, resume_ms=1.0, fetch_ms=2.0))
    for draw, mean_s in (
        (times.process_start_s, 0.01),
        (times.process_resume_s, 0.001),
        (times.fetch_s, 0.002),
    ):
        drawn_s = [draw(0) for _ in range(2000)]
        assert 0.5 * mean_s <= min(drawn_s) < 0.6 * mean_s
        assert 1.4 * mean_s < max(drawn_s) <= 1.5 * mean_s


def test_the_share_of_slow_pes_is_near_the_given_one() -> None:
    times = NetworkModel(Setting(pes=2000, faults=Faults(slow_pes=0.25, slow_factor=3.0)))
    factors = [times.slowness(rank) for rank in range(2000)]
    assert set(factors) == {1.0, 3.0}
    assert fmean(factor == 3.0 for factor in factors) == pytest.approx(0.25, abs=0.04)


@pytest.mark.parametrize("capacities", [(1,), (3, 2)])
def test_a_slow_rank_starts_the_processes_of_all_its_pes_slowly_and_no_others(
    capacities: tuple[int, ...],
) -> None:
    faults, processes = Faults(slow_pes=0.5, slow_factor=100.0), Processes(start_ms=1.0, resume_ms=1.0)
    setting = Setting(pes=20, capacities=capacities, faults=faults, processes=processes)
    times = NetworkModel(setting)
    rank_of = Cluster(20, capacities=setting.rank_capacities()).placement.rank_of
    slow = [times.slowness(rank) == 100.0 for rank in rank_of]
    assert any(slow)
    assert not all(slow)
    assert [times.process_start_s(pe) > 0.01 for pe in range(20)] == slow
    assert [times.process_resume_s(pe) > 0.01 for pe in range(20)] == slow
    assert [times.fetch_s(pe) > 0.01 for pe in range(20)] == slow


# --- the model in a cluster --------------------------------------------------------------------


def test_delayed_messages_are_overtaken_by_other_senders_but_never_by_their_own() -> None:
    faults = Faults(delayed_messages=0.3, delay_ms=10.0)
    cluster = at_rest(Setting(pes=4, network=PLAIN, faults=faults))
    heard = heard_by(cluster)
    begin_s = cluster.now
    for number in range(100):
        source = 1 + number % 3
        cluster.at(
            begin_s + number * 1e-3, lambda source=source, n=number: post(cluster, source, 0, VoidToken(n))
        )
    cluster.run(until_s=begin_s + 1.0)
    numbers = [message.number for _, _, _, message in heard if isinstance(message, VoidToken)]
    assert sorted(numbers) == list(range(100))
    assert numbers != sorted(numbers), "nothing was overtaken"
    for source in (1, 2, 3):
        own = [
            message.number for _, _, by, message in heard if by == source and isinstance(message, VoidToken)
        ]
        assert own == sorted(own)


def test_a_pe_handles_one_message_after_the_other() -> None:
    network = Network(same_host_us=10.0, jitter_us=0.0, handling_us=50.0, sending_us=0.0)
    cluster = at_rest(Setting(pes=4, network=network))
    heard = heard_by(cluster)
    begin_s = cluster.now
    for source in (1, 2, 3):
        post(cluster, source, 0, TokenReturned())
    cluster.run(until_s=begin_s + 1.0)
    assert [round(1e6 * (when_s - begin_s)) for when_s, *_ in heard] == [10, 60, 110]


def test_a_slow_pe_takes_longer_over_each_message() -> None:
    network = Network(same_host_us=10.0, jitter_us=0.0, handling_us=50.0, sending_us=0.0)
    cluster = at_rest(Setting(pes=4, network=network, faults=Faults(slow_pes=1.0, slow_factor=4.0)))
    heard = heard_by(cluster)
    begin_s = cluster.now
    for source in (1, 2):
        post(cluster, source, 0, TokenReturned())
    cluster.run(until_s=begin_s + 1.0)
    assert [round(1e6 * (when_s - begin_s)) for when_s, *_ in heard] == [10, 210]


def test_a_pe_sends_one_message_after_the_other() -> None:
    network = Network(same_host_us=10.0, jitter_us=0.0, handling_us=0.0, sending_us=20.0)
    cluster = at_rest(Setting(pes=4, network=network))
    heard = heard_by(cluster)
    begin_s = cluster.now
    cluster.pes[0].effects.extend(Send(dest, TokenReturned()) for dest in (1, 2, 3))
    cluster.tell(0, Tick())
    cluster.run(until_s=begin_s + 1.0)
    assert [round(1e6 * (when_s - begin_s)) for when_s, *_ in heard] == [30, 50, 70]


def test_a_rank_is_busy_with_messages_among_its_pes_for_the_time_within_a_rank() -> None:
    cluster = at_rest(Setting(pes=4, capacities=(2,), network=PLAIN))
    heard = heard_by(cluster)
    begin_s = cluster.now
    cluster.pes[0].effects.extend(Send(dest, TokenReturned()) for dest in (1, 2))
    cluster.tell(0, Tick())
    cluster.run(until_s=begin_s + 1.0)
    assert [(rank, round(1e6 * (when_s - begin_s))) for when_s, rank, *_ in heard] == [(1, 0), (2, 11)]


def test_worker_processes_start_after_their_time() -> None:
    setting = Setting(pes=2, network=PLAIN, processes=Processes(start_ms=20.0))
    cluster = at_rest(setting)
    cluster.submit(1, max_demand=1)
    begin_s = cluster.now
    started: list[float] = []
    cluster.observe = lambda now, _rank, event, _fields: started.append(now) if event == "started" else None
    cluster.run(until_s=begin_s + 1.0)
    assert len(started) == 1
    assert 0.01 <= started[0] - begin_s <= 0.04
