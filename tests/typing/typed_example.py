"""A typed program that uses the public interface. It is only checked, by mypy and pyright in strict mode."""

from __future__ import annotations

from typing import assert_type

import numpy as np
from numpy.typing import NDArray

from mallob_py import Answer, AsyncClient, Client, Executor, FormulaExecutor, JobFuture, Shared, solve


def length(text: str) -> int:
    return len(text)


def row_sum(table: Shared[NDArray[np.float64]], row: int) -> float:
    assert_type(table.value, NDArray[np.float64])
    return float(table.value[row].sum())


def functions() -> None:
    with Executor(ranks=2) as executor:
        assert_type(executor.submit(length, "abc").result(), int)
        assert_type(list(executor.map(length, ["a", "b"], progress=True)), list[int])
        assert_type(list(executor.map(length, ["a"], buffersize=2)), list[int])
        assert_type(executor.map(length, ["a"]).future().result(), list[int])
        table = executor.share(np.zeros((3, 3)))
        assert_type(list(executor.map(row_sum, [table] * 3, range(3))), list[float])


def formulas() -> None:
    with Client(".api") as client:
        assert_type(client.solve([[1, 2], [-1]]).satisfiable, bool | None)
        assert_type(client.submit("formula.cnf"), JobFuture)
        assert_type([answer.model for answer in client.map_formulas([[[1]]])], list[NDArray[np.int32] | None])
        assert_type(client.minimize([[1]], {1: 2}).value, int | None)
    with FormulaExecutor(".api") as executor:
        for answer in executor.map(solve, ["a.cnf"]):
            assert_type(answer, Answer)


async def asynchronous() -> None:
    async with AsyncClient(".api") as client:
        assert_type(await client.solve([[1]]), Answer)
        async for answer in client.as_completed(["a.cnf", [[1]]]):
            assert_type(answer.place, int | None)
        assert_type((await client.minimize([[1]], {1: 2})).value, int | None)
