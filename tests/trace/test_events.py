"""Typed events out of JSON text."""

import pytest
from msgspec import Raw

from atrex.trace.events import (
    KIND,
    Ignored,
    Kernel,
    Launch,
    Malformed,
    Unusable,
    decode_event,
    decode_events,
    nanoseconds,
)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        (b"4909914185565.495", 4_909_914_185_565_495),
        (b"1712195495123456.789", 1_712_195_495_123_456_789),  # a double holds 456.75
        (b".64", 640),
        (b"0.64", 640),
        (b"7.01", 7_010),
        (b"12", 12_000),
        (b"1.5e3", 1_500_000),
        (b'"1712195495123456.789"', 1_712_195_495_123_456_789),
        (b"1.2345", 1_234),
        (b"-3.000", -3_000),
        (b"-0.500", -500),
    ],
)
def test_times_are_exact_integers_of_ns(text, ns):
    assert nanoseconds(Raw(text)) == ns


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b'"soon"',
        b"1e999999999999",
        b"1e999999",
        b'"1712195495123456789"',
        b"4611686018427387.904",
    ],
)
def test_what_is_no_time_raises(text):
    with pytest.raises(ValueError, match="no time"):
        nanoseconds(Raw(text))


def test_python_frames_are_skipped_without_decoding():
    text = b'[{"ph": "X", "cat": "python_function", "name": 7, "ts": {}, "args": []}]'
    (event,) = decode_events(text)
    assert KIND[type(event)] is Ignored


@pytest.mark.parametrize("category", ["kernel", "Kernel", "KERNEL"])
def test_old_and_unknown_spellings_of_categories_are_understood(category):
    text = b'[{"cat": "%s", "name": "k"}]' % category.encode()
    (event,) = decode_events(text)
    assert KIND[type(event)] is Kernel
    assert event.name == "k"


def test_an_unknown_category_does_not_hide_its_neighbours():
    text = b'[{"cat": "brand_new"}, {"ph": "M", "name": "process_name"}, {"cat": "cuda_runtime"}]'
    assert [KIND[type(event)] for event in decode_events(text)] == [Ignored, Ignored, Launch]


def test_a_category_of_null_is_ignored():
    assert isinstance(decode_event(b'{"cat": null}'), Ignored)


def test_numbers_in_quotes_are_numbers():
    event = decode_event(b'{"cat": "kernel", "args": {"correlation": "12", "stream": "7"}}')
    assert (event.args.correlation, event.args.stream) == (12, 7)


def test_a_kernel_with_values_that_make_no_sense_is_counted_as_one():
    event = decode_event(b'{"cat": "kernel", "args": {"correlation": [1]}}')
    assert event == Unusable(kernel=True)


def test_the_last_of_duplicate_keys_wins():
    assert decode_event(b'{"cat": "kernel", "name": "a", "name": "b"}').name == "b"


def test_malformed_text_says_where():
    with pytest.raises(Malformed) as caught:
        decode_events(b'[{"cat": "kernel"}] x')
    assert caught.value.trailing
