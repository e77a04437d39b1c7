"""Plain text tables: numbers to the right, words to the left, a rule under the header."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Cell = str | int | float | bool | None


def format_cell(value: Cell) -> str:
    """Text of a cell: three significant digits at least for floats, "-" for nothing."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    digits = 3 if abs(value) < 10 else 2 if abs(value) < 100 else 1
    return f"{value:.{digits}f}"


def format_table(header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Lines of a table, without trailing blanks or newline."""
    body = [list(row) for row in rows]
    texts = [list(header), *([format_cell(cell) for cell in row] for row in body)]
    widths = [max(len(row[column]) for row in texts) for column in range(len(header))]
    is_number = [
        all(isinstance(row[column], int | float) or row[column] is None for row in body)
        for column in range(len(header))
    ]

    def line(cells: Sequence[str]) -> str:
        aligned = [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(cells, widths, is_number, strict=True)
        ]
        return "  ".join(aligned).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(texts[0]), rule, *(line(row) for row in texts[1:])])
