"""Every error class: its statuses, its way over the wire, its copy in another process."""

import http
import pickle

import grpc
import pytest

import replaysvc.errors
from replaysvc.errors import ERRORS, InvalidRequestError, ReplayError, SpecMismatchError, StorageError, from_wire

CLASSES = sorted(ERRORS.values(), key=lambda kind: kind.__name__)


def example(kind: type[ReplayError]) -> ReplayError:
    if kind is SpecMismatchError:
        return SpecMismatchError("observation/image", "uint8[84, 84]", "float32[84, 84, 3], found in step 7")
    return kind("table 'größe': 3,200 of 10,000 steps\nand a second line")


@pytest.fixture(params=CLASSES, ids=lambda kind: kind.__name__)
def kind(request):
    return request.param


def test_every_class_of_the_module_is_known_by_its_name():
    classes = {name: value for name, value in vars(replaysvc.errors).items() if isinstance(value, type)}
    assert {name: value for name, value in classes.items() if issubclass(value, Exception)} == ERRORS


def test_status_is_a_failure_in_grpc_and_http(kind):
    assert grpc.StatusCode[kind.grpc_status] is not grpc.StatusCode.OK
    assert http.HTTPStatus(kind.http_status) >= http.HTTPStatus.BAD_REQUEST


def test_callers_fault_and_ours_are_told_apart_by_the_http_status(kind):
    if issubclass(kind, InvalidRequestError):
        assert kind.http_status == 400
    if issubclass(kind, StorageError):
        assert kind.http_status >= 500


def test_no_class_is_caught_as_a_value_error(kind):
    assert not issubclass(kind, ValueError | OSError)


def test_class_and_sentence_survive_the_wire(kind):
    error = example(kind)
    arrived = from_wire(error.name, str(error))
    assert type(arrived) is kind
    assert str(arrived) == str(error)


@pytest.mark.parametrize(
    "fields",
    [
        ("observation/image", "uint8[84, 84]", "float32[84, 84, 3]"),
        ("gamma", "a number from 0 to 1", "nan"),
        ("name", "1 to 64 letters, digits, '_', '.' or '-'", "'a: b, c'"),
        ("x", "", ""),
    ],
)
def test_fields_of_a_mismatch_survive_the_wire(fields):
    sent = SpecMismatchError(*fields)
    arrived = from_wire(sent.name, str(sent))
    assert isinstance(arrived, SpecMismatchError)
    assert (arrived.field, arrived.expected, arrived.found) == fields


def test_a_name_of_a_newer_server_gives_the_base_class():
    arrived = from_wire("QuotaError", "too much")
    assert type(arrived) is ReplayError
    assert str(arrived) == "too much"


def test_error_pickles(kind):
    error = example(kind)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_documented_tree_is_the_tree():
    """The table in the module's docstring: name, indented under its base, gRPC and HTTP status where it has its own."""
    documented: dict[str, tuple[str, str, int]] = {}
    path: list[str] = []
    for line in (replaysvc.errors.__doc__ or "").splitlines():
        words = line.split()
        if not words or words[0] not in ERRORS:
            continue
        depth = (len(line) - len(line.lstrip())) // 2
        path = [*path[:depth], words[0]]
        if depth:
            own = (words[-2], int(words[-1])) if words[-1].isdigit() else documented[path[-2]][1:]
            documented[words[0]] = (path[-2], *own)
    below = [kind for kind in CLASSES if kind is not ReplayError]
    assert documented == {kind.__name__: (kind.__base__.__name__, kind.grpc_status, kind.http_status) for kind in below}
