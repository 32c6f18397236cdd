"""Looks at the bytes of requests before they become messages: few bytes can ask a parser for many objects."""

from replaysvc.errors import InvalidRequestError, SpecMismatchError

MAX_CHUNKS = 65_536
_CHUNKS_FIELD = 4  # of AppendRequest
_MAX_OTHER_BYTES = 1 << 20  # of any other field: open_episodes, 65,536 numbers of up to ten bytes
_MAX_FIELDS = MAX_CHUNKS + (1 << 10)
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types


def check_append(data: bytes) -> None:
    """Refuses an AppendRequest that would become more than its bytes take, or whose outermost fields are none.

    Raises:
      SpecMismatchError: too many chunks, or a field too long. InvalidRequestError: no protobuf.
    """
    at = fields = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _BYTES:
            size, at = _varint(data, at)
            if number != _CHUNKS_FIELD and size > _MAX_OTHER_BYTES:
                raise SpecMismatchError("request", f"fields other than chunks of at most {_MAX_OTHER_BYTES} bytes", str(size))
            at += size
        elif wire_type == _VARINT:
            _, at = _varint(data, at)
        elif wire_type in (_FIXED64, _FIXED32):
            at += 8 if wire_type == _FIXED64 else 4
        else:
            raise _no_message()
        fields += 1
        if fields > _MAX_FIELDS:
            raise SpecMismatchError("chunks", f"1 to {MAX_CHUNKS}", "more")
    if at != len(data):
        raise _no_message()


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns the number that begins at `at`, and where it ends."""
    value = 0
    for place in range(10):
        if at + place >= len(data):
            break
        byte = data[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    raise _no_message()


def _no_message() -> InvalidRequestError:
    return InvalidRequestError("request: expected a protobuf message, found bytes that are none")
