"""Answers that are remembered: the newest, up to a size in all."""

from replaysvc.health import cached as module
from replaysvc.health.cached import Cached


def test_answers_are_remembered_up_to_a_size(monkeypatch):
    monkeypatch.setattr(module, "_MOST_BYTES", 100)
    cached, made = Cached(lambda: 0.0), []

    def make(key, value):
        def making():
            made.append(key)
            return value

        return cached.get(key, making)

    make("first", b"a" * 60)
    make("image", (b"a" * 40, 1))
    assert make("first", b"") == b"a" * 60  # 100 bytes are remembered
    make("third", b"a")
    make("image", (b"", 1))
    make("first", b"b")  # which was the oldest, and had to go
    assert made == ["first", "image", "third", "first"]


def test_answer_that_is_too_large_is_given_and_forgotten(monkeypatch):
    monkeypatch.setattr(module, "_MOST_BYTES", 100)
    cached = Cached(lambda: 0.0)
    assert cached.get("key", lambda: b"a" * 101) == b"a" * 101
    assert cached.get("key", lambda: b"b") == b"b"


def test_value_that_is_being_made_stays_whatever_else_is_made(monkeypatch):
    monkeypatch.setattr(module, "_MOST_BYTES", 100)
    cached = Cached(lambda: 0.0)

    def slow():
        for number in range(10):
            cached.get(number, lambda: b"a" * 60)
        return b"slow"

    assert cached.get("key", slow) == b"slow"
    assert cached.get("key", lambda: b"anew") == b"slow"
