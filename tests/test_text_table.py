"""Tables for people have the same layout as tables of the package rich."""

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from mallob_py.text_table import as_text, empty_table

CELLS = st.text(st.sampled_from("ab \u4e2d\u00e9"), min_size=1, max_size=12).map(str.strip).filter(bool)


@given(
    st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=4),
    st.integers(2, 12),
    st.sampled_from(["left", "right"]),
)
def test_a_table_is_laid_out_as_by_rich(rows: list[tuple[str, str, str]], width: int, justify: str) -> None:
    table = empty_table()
    table.add_column(Text("one"), no_wrap=True, overflow="ellipsis", max_width=width)
    table.add_column(Text("two"), no_wrap=True, justify=justify)  # type: ignore[arg-type]
    table.add_column(Text("three", "bold"), no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(file=io.StringIO(), width=1000, color_system=None)
    with console.capture() as capture:
        console.print(table)
    expected = [line.rstrip() for line in capture.get().splitlines()]
    shown = as_text(table)
    assert shown.plain.splitlines() == expected
    assert [shown.plain[span.start : span.end] for span in shown.spans] == ["three"]
