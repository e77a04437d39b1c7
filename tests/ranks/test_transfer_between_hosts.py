"""Large descriptions between hosts: six ranks that play three hosts of two ranks each."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from running import (
    Running,
    descriptions_of,
    needs_mpiexec,
    poll_until,
    serving,
    session_folders_of,
    with_apps,
)

pytestmark = needs_mpiexec

RANKS = 6
HOSTS = 3
SIZE_BYTES = 6 << 20


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    env = {"MALLOB_PY_RANKS_PER_HOST": str(RANKS // HOSTS)} | with_apps(BULK="rank_apps:Bulk")
    with serving(tmp_path_factory.mktemp("service"), ranks=RANKS, env=env) as running:
        yield running
        assert running.stop() == 0
        assert session_folders_of(list(running.pids)) == []


def copies_of(service: Running, job: int) -> int:
    """Return the number of hosts that have the job's description."""
    return descriptions_of(list(service.pids)).count(str(job))


def test_all_workers_see_the_same_payload_and_the_root_answers(service: Running, tmp_path: Path) -> None:
    configuration = {"size_bytes": SIZE_BYTES, "folder": str(tmp_path), "workers": RANKS}
    reply = service.ask("bulk", application="BULK", configuration=configuration)
    (checksum,) = reply["result"]["solution"]
    found = {path.name: int(path.read_text()) for path in tmp_path.iterdir()}
    assert found == {str(index): checksum for index in range(RANKS)}
    job = reply["internal_id"]
    for rank in range(RANKS):
        service.await_event("adopted", job=job, rank=rank)
    poll_until(lambda: not copies_of(service, job), "no description is left")


def test_each_host_holds_one_copy_until_the_job_ends(service: Running, tmp_path: Path) -> None:
    configuration = {"size_bytes": SIZE_BYTES, "folder": str(tmp_path), "workers": RANKS + 1}
    path = service.submit("endless", application="BULK", configuration=configuration)
    poll_until(lambda: len(list(tmp_path.glob("[0-9]*"))) == RANKS, "all workers have their payload")
    job = service.await_event("accepted", name="endless")["job"]
    assert copies_of(service, job) == HOSTS
    service.interrupt("endless")
    assert service.reply(path)["result"]["outcome"] == "interrupted"
    poll_until(lambda: not copies_of(service, job), "no description is left")


def test_a_job_that_ends_during_its_transfer_leaves_nothing(service: Running, tmp_path: Path) -> None:
    configuration = {"size_bytes": SIZE_BYTES, "folder": str(tmp_path), "workers": RANKS}
    replies = [
        service.ask(
            f"brief-{limit_ms}",
            application="BULK",
            configuration=configuration,
            wallclock_limit=f"{limit_ms}ms",
        )
        for limit_ms in (1, 5, 10, 15, 20, 30)
    ]
    jobs = [reply["internal_id"] for reply in replies]
    poll_until(lambda: not any(copies_of(service, job) for job in jobs), "no description is left")
    assert service.ask("after", application="NOOP")["result"]["resultcode"] == 10


def test_a_large_formula_is_solved_on_several_hosts(service: Running, tmp_path: Path) -> None:
    n_vars = 400_000
    chain = "".join(f"-{variable} {variable + 1} 0\n" for variable in range(1, n_vars))
    formula = tmp_path / "chain.cnf"
    formula.write_text(f"p cnf {n_vars} {n_vars}\n1 0\n{chain}")
    reply = service.ask("chain", files=[str(formula)])
    assert reply["result"]["solution"] == list(range(1, n_vars + 1))
    job = reply["internal_id"]
    poll_until(lambda: not copies_of(service, job), "no description is left")
