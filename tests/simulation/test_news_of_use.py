"""Reports of workers' CPU time in random runs: most of them arrive."""

from seeds import seeds

from mallob_py.simulation.plan import draw_plan
from mallob_py.simulation.scenario import Scenario


def test_news_of_use_reach_the_clients_of_random_lives() -> None:
    known = set()
    for seed in seeds(40):
        life = Scenario(draw_plan(seed))
        life.run()
        assert set(life.cluster.ended) == set(life.cluster.submitted)
        known |= {
            (ended.stats.peak_memory_bytes, ended.stats.cpu_s > 0) for ended in life.cluster.ended.values()
        }
    assert known == {(0, False), (1 << 20, True)}
