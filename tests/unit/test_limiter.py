"""The limiter's formula, in small numbers worked by hand: diff = inserted * samples_per_insert - sampled."""

import pytest

from replaysvc.errors import InvalidRequestError, SpecMismatchError
from replaysvc.limiter import LimiterState, check_chunk
from replaysvc.options import Limiter


def state_of(limiter, *, inserted=0, sampled=0):
    state = LimiterState(limiter)
    state.restore(inserted, sampled)
    return state


def test_below_min_steps_samples_wait_and_say_how_far_it_is():
    state = state_of(Limiter(min_steps=10_000), inserted=3200)
    assert state.sample_waits(1, 3200) == "3,200 of 10,000 steps"
    assert state.sample_waits(1, 9_999) == "9,999 of 10,000 steps"
    assert state.sample_waits(1, 10_000) == ""


def test_without_a_ratio_nothing_else_waits():
    state = state_of(Limiter(min_steps=3), inserted=3, sampled=1 << 60)
    assert state.sample_waits(1 << 20, 3) == ""
    assert state.insert_waits(1 << 20, 3) == ""
    assert state.never_samples(1 << 40) == ""


def test_samples_are_let_through_down_to_min_diff_and_not_one_further():
    """4 samples per insert, 10 steps inserted: 40 items are due. min_diff 0: all 40, one at a time or at once."""
    state = state_of(Limiter(samples_per_insert=4, error_buffer=(0, 100)), inserted=10)
    assert state.sample_waits(40, 10) == ""
    assert state.sample_waits(41, 10) != ""
    state.count_sample(39)
    assert state.sample_waits(1, 10) == ""
    assert state.sample_waits(2, 10) != ""
    state.count_sample(1)
    assert state.sample_waits(1, 10) != ""


def test_inserts_are_let_through_up_to_max_diff_and_not_one_further():
    """2 samples per insert, max_diff 20: 10 steps without any sample, and 3 more for 6 items."""
    state = state_of(Limiter(samples_per_insert=2, error_buffer=(0, 20)))
    assert state.insert_waits(10, 0) == ""
    assert state.insert_waits(11, 0) != ""
    state.count_insert(10)
    state.count_sample(6)
    assert state.insert_waits(3, 10) == ""
    assert state.insert_waits(4, 10) != ""


def test_inserts_within_min_steps_always_pass():
    """max_diff 8 is met at 8 steps; a removal takes the table back to 2, and 5 fill it up to min_steps, 6 do not."""
    state = state_of(Limiter(min_steps=7, samples_per_insert=1, error_buffer=(0, 8)), inserted=8)
    assert state.insert_waits(1, 8) != ""
    assert state.insert_waits(5, 2) == ""
    assert state.insert_waits(6, 2) != ""


def test_removals_below_min_steps_hold_samples_back():
    state = state_of(Limiter(min_steps=7, samples_per_insert=1, error_buffer=(0, 8)), inserted=8)
    assert state.sample_waits(1, 7) == ""
    assert state.sample_waits(1, 6) == "6 of 7 steps"


def test_a_number_as_error_buffer_lies_around_min_steps_times_the_ratio():
    """1000 * 8 -+ 800: samples down to a diff of 7200, inserts up to 8800."""
    state = state_of(Limiter(min_steps=1000, samples_per_insert=8, error_buffer=800), inserted=1000)
    assert state.sample_waits(800, 1000) == ""
    assert state.sample_waits(801, 1000) != ""
    assert state.insert_waits(100, 1000) == ""
    assert state.insert_waits(101, 1000) != ""


def test_a_queue_of_ten_takes_no_eleventh_and_gives_nothing_when_empty():
    state = state_of(Limiter.queue(10))
    for stored in range(10):
        assert state.insert_waits(1, stored) == ""
        state.count_insert(1)
    assert state.insert_waits(1, 10) != ""
    assert state.sample_waits(10, 10) == ""
    state.count_sample(1)
    assert state.insert_waits(1, 10) == ""
    state.count_sample(9)
    assert state.sample_waits(1, 10) != ""


@pytest.mark.parametrize("ratio", [0.1, 0.3, 0.7, 1.1, 2.3])
def test_exactly_at_a_bound_nothing_waits_however_the_ratio_rounds(ratio):
    """`tenths` items for ten steps: 0.1 * 3 and 1.1 * 10 are a little too large as floats, 0.7 * 10 * 7 may be too small."""
    tenths = round(10 * ratio)
    for tens in (1, 3, 7, 10**12):
        limiter = Limiter(samples_per_insert=ratio, error_buffer=(0, 50))
        state = state_of(limiter, inserted=10 * tens, sampled=tenths * tens - 1)
        assert state.sample_waits(1, 10) == ""
        assert state.sample_waits(2, 10) != ""
        state.restore(10 * tens, tenths * tens + tenths - 50)
        assert state.insert_waits(10, 10) == ""
        assert state.insert_waits(11, 10) != ""


def test_words_of_a_sample_that_waits():
    """128 * 4 - 512 = 0 is min_diff: 256 items take 64 steps; 255 take 63.75, so 64."""
    state = state_of(Limiter(samples_per_insert=4, error_buffer=(0, 1000)), inserted=128, sampled=512)
    words = "limiter: 512 items were sampled for 128 steps inserted; 64 more steps must be inserted before {} can be sampled"
    assert state.sample_waits(256, 128) == words.format("256 items")
    assert state.sample_waits(255, 128) == words.format("255 items")
    state.restore(1, 4)
    assert state.sample_waits(1, 1) == (
        "limiter: 4 items were sampled for 1 step inserted; 1 more step must be inserted before 1 item can be sampled"
    )


def test_words_of_an_insert_that_waits():
    """1000 * 4 - 1000 = 3000 is max_diff: 3 steps bring 12 too many. At a ratio of 1/2 a step brings half an item: one."""
    state = state_of(Limiter(samples_per_insert=4, error_buffer=(0, 3000)), inserted=1000, sampled=1000)
    assert state.insert_waits(3, 1000) == (
        "limiter: 1,000 steps were inserted for 1,000 items sampled; 12 more items must be sampled before 3 steps can be "
        "inserted"
    )
    state = state_of(Limiter(samples_per_insert=0.5, error_buffer=(0, 2)), inserted=4)
    assert state.insert_waits(1, 4) == (
        "limiter: 4 steps were inserted for 0 items sampled; 1 more item must be sampled before 1 step can be inserted"
    )


def test_the_number_of_missing_items_is_just_enough():
    state = state_of(Limiter(samples_per_insert=4, error_buffer=(0, 3000)), inserted=1000, sampled=1000)
    state.count_sample(11)
    assert "1 more item" in state.insert_waits(3, 1000)
    state.count_sample(1)
    assert state.insert_waits(3, 1000) == ""


def test_more_items_than_the_buffer_holds_can_never_be_sampled_at_once():
    state = state_of(Limiter(samples_per_insert=4, error_buffer=(-10, 30)))
    assert state.never_samples(40) == ""
    assert state.never_samples(41) == "the limiter lets at most max_diff - min_diff = 40 items be sampled at once, not 41"
    state.set_options(Limiter(samples_per_insert=1, error_buffer=(0, 2_000_000.5)))
    assert state.never_samples(2_000_000) == ""
    assert "2,000,000 items" in state.never_samples(2_000_001)


def test_steps_let_in_and_not_inserted_hold_others_back_and_let_nobody_sample():
    state = state_of(Limiter(min_steps=2, samples_per_insert=1, error_buffer=(0, 5)))
    state.admit(5)
    assert "0 of 2 steps" in state.sample_waits(1, 0)
    assert state.insert_waits(1, 0) == (
        "limiter: 5 steps were inserted for 0 items sampled; 1 more item must be sampled before 1 step can be inserted"
    )
    state.withdraw(5)  # they could not be stored
    assert state.insert_waits(5, 0) == ""
    state.admit(5)
    state.withdraw(5)
    state.count_insert(5)
    assert (state.inserted, state.admitted) == (5, 0)
    assert state.sample_waits(5, 5) == ""
    assert state.insert_waits(1, 5) != ""


def test_steps_let_in_count_towards_min_steps_too():
    """max_diff 4 is met by the 4 let in; without them 2 more would seem to fit below min_steps."""
    state = state_of(Limiter(min_steps=4, samples_per_insert=1, error_buffer=(0, 4)))
    state.admit(4)
    assert state.insert_waits(2, 0) != ""


def test_another_limiter_goes_on_from_the_same_counts():
    state = state_of(Limiter.queue(10), inserted=10)
    assert state.insert_waits(1, 10) != ""
    state.set_options(Limiter.queue(11))
    assert state.insert_waits(1, 10) == ""
    assert state.insert_waits(2, 10) != ""
    assert (state.inserted, state.sampled) == (10, 0)
    state.set_options(Limiter(min_steps=20))
    assert state.insert_waits(1000, 10) == ""
    assert state.sample_waits(1, 10) == "10 of 20 steps"
    assert state.options.min_steps == 20


def test_a_chunk_that_fits_the_buffer_is_fine():
    check_chunk(Limiter(), 1 << 16)
    check_chunk(Limiter.queue(10), 10)
    check_chunk(Limiter(min_steps=1000, samples_per_insert=8, error_buffer=800), 101)  # 8 * 100 above 8 * 1000


@pytest.mark.parametrize(
    ("limiter", "chunk_steps", "needed", "found"),
    [
        (Limiter.queue(10), 11, 11, 10),
        (Limiter(samples_per_insert=2, error_buffer=(0, 30)), 16, 32, 30),
        (Limiter(min_steps=5, samples_per_insert=1, error_buffer=(-100, 9)), 6, 10, 9),  # 4 steps, 6 more: none to be sampled
        (Limiter(min_steps=1000, samples_per_insert=8, error_buffer=800), 102, 8808, 8800),
    ],
)
def test_a_chunk_that_could_wait_for_ever_is_refused(limiter, chunk_steps, needed, found):
    with pytest.raises(SpecMismatchError, match="error_buffer.*chunk_steps") as caught:
        check_chunk(limiter, chunk_steps)
    assert f"at least {needed}, since a chunk of {chunk_steps} steps" in caught.value.expected
    assert caught.value.found == str(found)
    check_chunk(limiter, chunk_steps - 1)


@pytest.mark.parametrize(
    "options",
    [
        {"samples_per_insert": 4, "error_buffer": (0, 7)},  # less than 2 * 4
        {"samples_per_insert": 0.5, "error_buffer": 0.5},  # less than 2
        {"min_steps": 10, "samples_per_insert": 1, "error_buffer": (11, 30)},  # no sample is ever due at min_steps
        {"min_steps": 10, "samples_per_insert": 1, "error_buffer": (0, 9)},  # no insert is let in before samples are
    ],
)
def test_limiters_that_must_end_in_a_deadlock_are_refused_when_they_are_made(options):
    with pytest.raises(InvalidRequestError, match="error_buffer"):
        Limiter(**options)
