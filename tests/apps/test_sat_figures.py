"""A worker sees the counts of its solver's process."""

import os
import time

from mallob_sat.figures import UNTOLD, Figures, FiguresBoard


def test_figures_of_a_child_are_read_by_its_parent_also_after_its_end() -> None:
    board = FiguresBoard()
    assert board.read() == Figures(conflicts=UNTOLD)
    assert board.cpu_s() == 0
    pid = os.fork()
    if pid == 0:
        figures = board.begin()
        while time.process_time() < 0.05:
            pass
        figures.came, figures.used, figures.removed, figures.waited_s = 5, 3, 1, 0.75
        board.write(figures)
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # the process has ended, but was not reaped
    assert board.cpu_s() >= 0.05
    board.close()
    os.waitpid(pid, 0)
    assert board.read() == Figures(5, 3, 1, UNTOLD, 0.75, pid)
    assert board.cpu_s() >= 0.05
