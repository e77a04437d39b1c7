"""Requests of MPICH's ranks to their process manager, and the answers."""

from mallob_py.runtime.world.forked_world import PmiServer, pmi_environment


def ask(server: PmiServer, rank: int, question: str) -> str:
    ((asker, answer),) = server.receive(rank, f"{question}\n".encode())
    assert asker == rank
    assert answer.endswith(b"\n")
    return answer.decode().rstrip("\n")


def test_a_rank_finds_its_place_in_the_environment() -> None:
    found = pmi_environment(2, 5, 17)
    assert found == {"PMI_RANK": "2", "PMI_SIZE": "5", "PMI_FD": "17"}


def test_all_ranks_are_said_to_be_on_one_host() -> None:
    answer = ask(PmiServer(7, "x"), 3, "cmd=get kvsname=x key=PMI_process_mapping")
    assert answer == "cmd=get_result rc=0 msg=success value=(vector,(0,1,7))"


def test_each_world_has_the_name_it_was_given() -> None:
    assert ask(PmiServer(1, "some_world"), 0, "cmd=get_my_kvsname") == "cmd=my_kvsname kvsname=some_world"


def test_what_one_rank_puts_another_gets() -> None:
    server = PmiServer(2, "x")
    assert ask(server, 0, "cmd=put kvsname=x key=k value=v=1").startswith("cmd=put_result rc=0")
    assert ask(server, 1, "cmd=get kvsname=x key=k").endswith("rc=0 msg=success value=v=1")
    assert "rc=-1" in ask(server, 1, "cmd=get kvsname=x key=other")


def test_a_barrier_opens_when_all_have_come_and_only_then() -> None:
    server = PmiServer(3, "x")
    for _ in range(2):
        assert server.receive(0, b"cmd=barrier_in\n") == []
        assert server.receive(2, b"cmd=barrier_in\n") == []
        assert server.receive(1, b"cmd=barrier_in\n") == [(each, b"cmd=barrier_out\n") for each in range(3)]


def test_questions_arrive_in_pieces_and_in_bunches() -> None:
    server = PmiServer(2, "x")
    assert server.receive(0, b"cmd=get_a") == []
    assert server.receive(1, b"cmd=get_appnum\n") == [(1, b"cmd=appnum appnum=0\n")]
    answers = server.receive(0, b"ppnum\ncmd=finalize\n")
    assert answers == [(0, b"cmd=appnum appnum=0\n"), (0, b"cmd=finalize_ack\n")]
    assert server.finalized == {0}


def test_an_abort_of_one_rank_is_noticed() -> None:
    server = PmiServer(2, "x")
    assert server.receive(1, b"cmd=abort exitcode=1\n") == []
    assert server.is_aborted


def test_what_is_not_served_is_declined() -> None:
    assert ask(PmiServer(2, "x"), 0, "cmd=publish_name service=a port=b") == (
        "cmd=publish_name_result rc=-1 msg=not_supported"
    )
