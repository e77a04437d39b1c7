"""Every message can be encoded and decoded; anything else is rejected."""

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mallob_py.protocol import messages

_KINDS: tuple[type[Any], ...] = get_args(messages.AnyMessage)
_LARGEST = 2**62


def _values(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for the values of a field's type, within its bounds."""
    match kind:
        case msgspec.inspect.IntType(ge=least):
            return st.integers(-_LARGEST if least is None else least, _LARGEST)
        case msgspec.inspect.FloatType(ge=least):
            return st.floats(min_value=least, allow_nan=False)
        case msgspec.inspect.BoolType():
            return st.booleans()
        case msgspec.inspect.BytesType():
            return st.binary(max_size=50)
        case msgspec.inspect.StrType():
            return st.text(max_size=20)
        case msgspec.inspect.NoneType():
            return st.none()
        case msgspec.inspect.UnionType(types=kinds):
            return st.one_of(*map(_values, kinds))
        case msgspec.inspect.VarTupleType(item_type=item, min_length=least):
            return st.lists(_values(item), min_size=least or 0, max_size=4).map(tuple)
        case msgspec.inspect.TupleType(item_types=items):
            return st.tuples(*map(_values, items))
        case msgspec.inspect.StructType(cls=struct, fields=fields):
            return st.builds(struct, **{field.name: _values(field.type) for field in fields})
    raise AssertionError(f"a message has a field of type {kind}")


@pytest.mark.parametrize("kind", _KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=25)
@given(data=st.data())
def test_every_message_survives_the_wire(kind: type[Any], data: st.DataObject) -> None:
    message = data.draw(_values(msgspec.inspect.type_info(kind)))
    assert isinstance(message, messages.Message)
    assert messages.decode(messages.encode(message)) == message


def test_every_kind_of_message_is_in_the_union_and_has_its_own_tag() -> None:
    assert set(_KINDS) == set(messages.Message.__subclasses__())
    tags = [kind.__struct_config__.tag for kind in _KINDS]
    assert len(set(tags)) == len(_KINDS)


@pytest.mark.parametrize(
    "data", [b"", b"\x00", b"\x91\x63", b"\x92\x01\x05", messages.encode([4, "one", 2]), messages.encode({})]
)
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        messages.decode(data)


def test_small_messages_stay_small_on_the_wire() -> None:
    event = messages.JobEvent(job=12, version=3, demand=64, priority=1.0, standing=-20.5)
    assert len(messages.encode(event)) < 32
    assert len(messages.encode(messages.Description(100))) < 16
    assert len(messages.encode(messages.PastWorker(3, 100, 1000))) < 8


def test_a_request_knows_which_worker_it_wants_and_who_its_parent_is() -> None:
    request = messages.Request(
        job=1,
        subtree=2,
        position=1,
        count=3,
        base=40,
        epoch=7,
        path=(4, 9, 6),
        hops=0,
        asked_s=0.5,
        description=None,
    )
    assert request.index == 5
    assert request.parent == 6


def test_a_returned_message_is_addressed_to_its_sender() -> None:
    message = messages.TreeMessage(
        job=1, target=5, target_index=0, source=8, source_index=2, returned=False, data=b"news"
    )
    back = message.back()
    assert (back.target, back.target_index, back.source, back.source_index) == (8, 2, 5, 0)
    assert back.returned
    assert back.data == b"news"
