"""The client for asyncio: answers, cancellation, and threads, on a service that the test plays."""

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pytest
from desk import FAILED, SAT, UNSAT, Desk
from waiting import DEADLINE_S

from mallob_py import AsyncClient, JobError
from mallob_py.service import ServiceError

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def client_of(desk: Desk) -> AsyncClient:
    return AsyncClient(desk.client.api_dir, user="u", service_timeout_s=None)


async def taken(desk: Desk, count: int) -> list[Any]:
    """Return the next job files and their fields."""
    return [await asyncio.to_thread(desk.take) for _ in range(count)]


async def test_many_await_answers_at_once_with_two_threads(desk: Desk) -> None:
    async with client_of(desk) as client:
        before = {thread.name for thread in threading.enumerate()}
        tasks = [asyncio.create_task(client.solve([[1]])) for _ in range(50)]
        jobs = await taken(desk, 50)
        new = {thread.name for thread in threading.enumerate()} - before
        assert {name for name in new if not name.startswith("asyncio")} == {
            "mallob-py-async_0",
            "mallob-py-client",
        }
        for job in jobs:
            desk.say(SAT)(*job)
        assert [answer.satisfiable for answer in await asyncio.gather(*tasks)] == [True] * 50


async def test_answers_come_as_jobs_end_and_tell_their_places(desk: Desk) -> None:
    async with client_of(desk) as client:
        found: list[tuple[int | None, bool | None]] = []

        async def ask() -> None:
            async for answer in client.as_completed([[[1]], [[2]], [[3]]], group="g", priority=2.0):
                found.append((answer.place, answer.satisfiable))

        asking = asyncio.create_task(ask())
        jobs = await taken(desk, 3)
        assert [(fields["group"], fields["literals"][0]) for _, fields in jobs] == [
            ("g", n) for n in (1, 2, 3)
        ]
        for place, result in ((2, UNSAT), (0, SAT), (1, SAT)):
            desk.say(result)(*jobs[place])
            while len(found) < 1 or found[-1][0] != place:
                await asyncio.sleep(0.005)
        await asking
        assert found == [(2, False), (0, True), (1, True)]


async def test_a_task_that_is_cancelled_interrupts_its_job(desk: Desk) -> None:
    async with client_of(desk) as client:
        task = asyncio.create_task(client.solve([[1]]))
        ((_, fields),) = await taken(desk, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        ((_, order),) = await taken(desk, 1)
        assert (order["interrupt"], order["name"]) == (True, fields["name"])


async def test_a_time_out_interrupts_the_job(desk: Desk) -> None:
    limit = asyncio.timeout(None)
    async with client_of(desk) as client:

        async def run() -> None:
            async with limit:
                await client.run("QUEENS", n=30)

        task = asyncio.create_task(run())
        ((_, fields),) = await taken(desk, 1)
        assert fields["configuration"] == {"n": 30}
        limit.reschedule(0.0)
        with pytest.raises(TimeoutError):
            await task
        ((_, order),) = await taken(desk, 1)
        assert order["interrupt"]


@pytest.mark.parametrize("how", ["break", "raise", "refused"])
async def test_an_iteration_that_ends_early_interrupts_the_other_jobs(desk: Desk, how: str) -> None:
    async with client_of(desk) as client:

        async def ask() -> None:
            async for _ in client.as_completed([[[1]], [[2]], [[3]]]):
                if how == "raise":
                    raise KeyError(how)
                break

        asking = asyncio.create_task(ask())
        jobs = await taken(desk, 3)
        desk.say(FAILED if how == "refused" else SAT)(*jobs[1])
        with suppress(KeyError, JobError):
            await asking
            assert how == "break"
        orders = await taken(desk, 2)
        assert all(fields["interrupt"] for _, fields in orders)
        assert {fields["name"] for _, fields in orders} == {jobs[place][1]["name"] for place in (0, 2)}


async def test_what_is_no_formula_is_told_and_hands_in_nothing(desk: Desk) -> None:
    async with client_of(desk) as client:
        with pytest.raises(TypeError, match="formula"):
            await client.solve(object())  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="formula"):
            async for _ in client.as_completed([object()]):  # type: ignore[list-item]
                pass
        assert repr(client) == f"<AsyncClient on {str(desk.client.api_dir)!r}>"
    with pytest.raises(RuntimeError):
        await client.solve([[1]])


async def test_the_end_of_the_client_interrupts_its_jobs(desk: Desk) -> None:
    async with client_of(desk) as client:
        task = asyncio.create_task(client.solve_smt("(check-sat)"))
        ((_, fields),) = await taken(desk, 1)
        assert fields["application"] == "SMT"
    with pytest.raises(asyncio.CancelledError):
        await task
    ((_, order),) = await taken(desk, 1)
    assert order["interrupt"]


async def test_status_and_errors_come_as_from_the_other_client(desk: Desk) -> None:
    async with client_of(desk) as client:
        with pytest.raises(ServiceError, match="no service is running"):
            await client.status()
        await client.interrupt("any")
        ((_, order),) = await taken(desk, 1)
        assert order["name"] == "any"
        task = asyncio.create_task(client.minimize([[1]], {1: 3}))
        ((incoming, fields),) = await taken(desk, 1)
        assert fields["application"] == "MAXSAT"
        desk.say({"result": {"resultcode": 30, "cost": 3, "solution": [1]}})(incoming, fields)
        best = await asyncio.wait_for(task, DEADLINE_S)
        assert (best.value, best.is_optimal) == (3, True)
