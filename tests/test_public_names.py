"""`__all__` and the names that a user sees are the same."""

import types

import pytest

import replay_client
import replaysvc


def public_names(package: types.ModuleType) -> set[str]:
    """Returns the names without underscore that are neither modules nor tools of typing."""
    return {
        name
        for name, value in vars(package).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType) and getattr(value, "__module__", "") != "typing"
    } - {"TYPE_CHECKING"}


@pytest.mark.parametrize("package", [replaysvc, replay_client], ids=lambda package: package.__name__)
def test_all_lists_every_public_name(package):
    assert set(package.__all__) == public_names(package)
    assert package.__all__ == sorted(package.__all__)


def test_shared_names_mean_the_same_in_both_packages():
    for name in set(replaysvc.__all__) & set(replay_client.__all__):
        assert getattr(replaysvc, name) is getattr(replay_client, name)


def test_options_of_a_user_come_from_either_package():
    options = {"ClientConfig", "FieldSpec", "Precision", "Signature", "TableConfig", "Transitions"}
    assert options <= set(replaysvc.__all__) & set(replay_client.__all__)


def test_every_public_class_and_function_has_a_docstring():
    for package in (replaysvc, replay_client):
        for name in package.__all__:
            assert getattr(package, name).__doc__, f"{package.__name__}.{name}"
