import os
import socket

import pytest

from atrex.judge.channel import (
    HEADER,
    OUTPUT_BYTES,
    PAYLOAD_BYTES,
    RECORD,
    Arguments,
    Block,
    Channel,
    Ended,
    Fault,
    Kind,
    Output,
    Status,
    escaped,
)
from atrex.judge.memory import Placement
from atrex.model import Outcome


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = Channel(ours)
    yield channel, theirs
    channel.close()
    theirs.close()


def answer(request: bytes, **changes: int) -> bytes:
    kind, _, nonce, number = HEADER.unpack_from(request)
    fields = {"nonce": nonce, "number": number, "kind": kind, "status": 0, "detail": 0,
              "reserved": 0, "extra": 0} | changes  # fmt: skip
    return RECORD.pack(*fields.values())


def violation(call) -> str:
    with pytest.raises(Fault) as caught:
        call()
    assert (caught.value.outcome, caught.value.kind) == (Outcome.VIOLATION, "protocol")
    return caught.value.reason


def test_an_answer_with_the_nonce_and_number_of_its_request_is_accepted(pair):
    channel, theirs = pair
    channel.send(channel.compose(Kind.GO, b"payload"))
    request = theirs.recv(1000)
    assert request[HEADER.size :] == b"payload"
    theirs.send(answer(request, status=1, detail=7))
    reply = channel.accept(channel.receive())
    assert (reply.status, reply.detail) == (Status.FAILED, 7)


@pytest.mark.parametrize("field", ["nonce", "number", "kind"])
def test_an_answer_that_differs_from_its_request_is_a_violation(pair, field):
    channel, _ = pair
    request = channel.compose(Kind.GO)
    forged = answer(request, **{field: 99})
    assert "no request" in violation(lambda: channel.accept(forged))


@pytest.mark.parametrize("size", [0, 1, 39, 41])
def test_a_record_of_another_size_is_a_violation(pair, size):
    channel, _ = pair
    channel.compose(Kind.GO)
    assert f"{size} bytes" in violation(lambda: channel.accept(bytes(size)))


def test_an_unknown_status_or_a_used_reserved_field_is_a_violation(pair):
    channel, _ = pair
    request = channel.compose(Kind.GO)
    assert "status 9" in violation(lambda: channel.accept(answer(request, status=9)))
    request = channel.compose(Kind.GO)
    violation(lambda: channel.accept(answer(request, reserved=1)))


def test_an_answer_is_accepted_once(pair):
    channel, _ = pair
    record = answer(channel.compose(Kind.GO))
    channel.accept(record)
    violation(lambda: channel.accept(record))


def test_records_beyond_the_answers_asked_for_are_a_violation(pair):
    channel, theirs = pair
    channel.refuse_surplus()
    theirs.send(b"x")
    assert "more records" in violation(channel.refuse_surplus)


def test_nonces_of_two_requests_differ(pair):
    channel, _ = pair
    nonces = {HEADER.unpack_from(channel.compose(Kind.GO))[2] for _ in range(100)}
    assert len(nonces) == 100


def test_silence_is_none_and_a_closed_end_is_told_apart(pair):
    channel, theirs = pair
    assert channel.receive() is None
    theirs.close()
    with pytest.raises(Ended):
        channel.receive()
    with pytest.raises(Ended):
        channel.send(channel.compose(Kind.GO))


def test_a_payload_that_is_no_single_datagram_is_refused(pair):
    channel, _ = pair
    with pytest.raises(ValueError, match="65537 bytes"):
        channel.compose(Kind.BIND, bytes(PAYLOAD_BYTES + 1))


def test_captured_output_keeps_its_tail_and_escapes_control_characters():
    output = Output()
    os.write(output.write_fd, b"x" * 200_000 + b"\n\x1b[2Jgone\rValueError: caf\xc3\xa9 \xff\n")
    text = output.text()
    assert len(text.encode()) < OUTPUT_BYTES + 100
    assert output.last_line() == "\\x1b[2Jgone\\rValueError: café \\xff"
    output.close()
    assert output.last_line() == "\\x1b[2Jgone\\rValueError: café \\xff"
    output.close()


def test_escaping_keeps_readable_text_and_disarms_the_rest():
    assert escaped("exp(x) ≤ 1\t\u202e\x00") == "exp(x) ≤ 1\\t\\u202e\\x00"


def test_the_payload_of_a_native_call_is_the_struct_then_its_relocations():
    block = Block(data=b"12345678", relocations=((0, 1, 4096),))
    words = [int.from_bytes(block.encode()[at : at + 8], "little") for at in range(0, 48, 8)]
    assert words == [8, 1, int.from_bytes(b"12345678", "little"), 0, 1, 4096]


def test_arguments_survive_the_way_to_a_python_worker():
    import msgspec

    place = Placement(arena=1, offset=64, shape=(2, 3), strides=(3, 1), dtype="bf16")
    sent = Arguments(inputs={"x": place, "eps": 1e-6, "flag": 1}, outputs={"out": place})
    assert msgspec.msgpack.decode(sent.encode(), type=Arguments) == sent
