"""The status says which PE works for which job only while a page is open."""

from pathlib import Path

from running import needs_mpiexec, poll_until, serving

from mallob_py.service.telemetry.status import ServiceStatus, look, read_live_status

pytestmark = needs_mpiexec
RANKS = 3


def trees(status: ServiceStatus) -> dict[str, list[int]]:
    """Return job -> indices of its active workers."""
    names = {job.id: job.identity for job in status.jobs}
    found: dict[str, list[int]] = {}
    for worker in status.workers or ():
        found.setdefault(names.get(worker.job, "?"), []).append(worker.index)
    return {name: sorted(indices) for name, indices in found.items()}


def test_the_workers_of_all_ranks_are_told_while_somebody_looks(tmp_path: Path) -> None:
    with serving(tmp_path, ranks=RANKS) as service:

        def status() -> ServiceStatus:
            # On a busy machine, a service that writes no status for some seconds counts as absent.
            return poll_until(lambda: read_live_status(service.api_dir), "the service says how it is")

        def looked_at() -> ServiceStatus:
            look(service.api_dir)
            return status()

        service.submit("one", application="SLEEP", priority=2.0)
        service.submit("two", application="SLEEP", priority=1.0)
        poll_until(lambda: status().busy == RANKS, "all PEs are busy")
        assert status().workers is None

        expected = {"u.one": [0, 1], "u.two": [0]}
        poll_until(lambda: trees(looked_at()) == expected, "both trees are seen whole")
        workers = status().workers
        assert workers is not None
        assert [worker.pe for worker in workers] == [0, 1, 2]

        poll_until(lambda: status().workers is None, "nobody looks any more")
