"""Messages for a lost client are kept for its successor, up to a bound."""

from mallob_py.protocol import succession
from mallob_py.protocol.effects import Outbox
from mallob_py.protocol.messages import ResultFound, WorkerFailed
from mallob_py.protocol.succession import LastWords

CLIENT = 1


def test_the_oldest_words_go_when_they_are_many() -> None:
    words, out = LastWords(), Outbox(0, 2)
    for job in range(100):
        words.say(CLIENT, WorkerFailed(job, 0, "why"), out)
    assert sorted(words.jobs()) == list(range(100 - succession.KEPT_MAX, 100))


def test_the_oldest_words_go_when_they_are_large_and_what_is_too_large_is_not_kept() -> None:
    words, out = LastWords(), Outbox(0, 2)
    third = succession.KEPT_BYTES_MAX // 3
    for job, size_bytes in enumerate((third, third, third, 10)):
        words.say(CLIENT, ResultFound(job, 0, 0, bytes(size_bytes)), out)
    assert sorted(words.jobs()) == [1, 2, 3]
    words.forget(2)
    words.say(CLIENT, ResultFound(4, 0, 0, bytes(third)), out)
    assert sorted(words.jobs()) == [1, 3, 4]
    words.say(CLIENT, ResultFound(5, 0, 0, bytes(3 * third + 3)), out)
    assert sorted(words.jobs()) == [1, 3, 4]


def test_what_was_forgotten_makes_room() -> None:
    words, out = LastWords(), Outbox(0, 2)
    for job in range(10):
        words.say(CLIENT, ResultFound(job, 0, 0, bytes(succession.KEPT_BYTES_MAX)), out)
        assert sorted(words.jobs()) == [job]
        words.forget(job)
