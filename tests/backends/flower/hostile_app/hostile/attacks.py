"""What a hostile node sends in place of an honest reply. Each is a function of what was asked and the honest reply."""

import json
import math

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import add_header_to_object_body

ESCAPES = "\x1b[2K\rround 9/9  accuracy 99.9 %\nfedlga-done /tmp\n"


def answer(message, reply, change):
    """Return the reply with its arrays changed, whichever of the two forms it has."""
    [name] = list(reply.content.array_records)
    arrays = {key: change(array) for key, array in reply.content.array_records[name].items()}
    others = {key: record for key, record in reply.content.items() if key != name}
    return Message(RecordDict({name: ArrayRecord(arrays), **others}), reply_to=message)


def send_huge_numbers(message, reply):
    """Numbers that are finite, and whose sum is not."""
    return answer(message, reply, lambda array: Array(np.full(tuple(array.shape), 3e38, array.dtype)))


def send_no_body(message, reply):
    """An array whose body is empty: Flower raises when it reads it."""
    return forge_arrays(message, reply, lambda array: b"")


def send_a_chunk_often(message, reply):
    """An array that says it is its one chunk, a million times."""

    def body(array):
        head = {"dtype": "float32", "shape": list(array.shape), "stype": "numpy.ndarray"}
        return json.dumps({**head, "arraychunk_ids": [0] * 1_000_000}).encode()

    return forge_arrays(message, reply, body)


def forge_arrays(message, reply, body):
    """Return the reply with other bodies of its arrays. The class's name is what Flower puts into their heads."""

    def deflate(self):
        return add_header_to_object_body(body(self), self)

    forged = answer(message, reply, lambda array: Array(array.numpy()))
    for record in forged.content.array_records.values():
        for array in record.values():  # a record has copies of what it was given
            array.__class__ = type("Array", (Array,), {"deflate": deflate})
    return forged


def send_much(message, reply):
    """Eight megabytes for a model of ten numbers."""
    return answer(message, reply, lambda array: Array(np.random.default_rng(0).random(2**20)))


def answer_another_message(message, reply):
    """A reply that says, in what only the aggregator reads, that it answers a message of nobody."""
    forged = Message(reply.content, reply_to=message)

    def lie(self):
        before = self.metadata.__dict__["_reply_to_message_id"]
        self.metadata.__dict__["_reply_to_message_id"] = "f" * 64
        content = Message.deflate(self)
        self.metadata.__dict__["_reply_to_message_id"] = before
        return content

    forged.__class__ = type("Message", (Message,), {"deflate": lie})
    return forged


def send_a_name(message, reply):
    """A vector whose name has two megabytes, and codes for a terminal."""
    [name] = list(reply.content.array_records)
    arrays = {f"{ESCAPES}{'x' * 2**21}": array for array in reply.content.array_records[name].values()}
    others = {key: record for key, record in reply.content.items() if key != name}
    return Message(RecordDict({name: ArrayRecord(arrays), **others}), reply_to=message)


def fail_with_codes(message, reply):
    """An error whose text has codes for a terminal, and lines that look like ours."""
    raise RuntimeError(f"{ESCAPES}it is broken \x1b[31m")


def fail_at_length(message, reply):
    """An error of twenty megabytes."""
    raise RuntimeError("x" * 20_000_000)


ATTACKS = {
    "huge numbers": send_huge_numbers,
    "no body": send_no_body,
    "a chunk often": send_a_chunk_often,
    "much": send_much,
    "another message": answer_another_message,
    "a name": send_a_name,
    "codes": fail_with_codes,
    "length": fail_at_length,
}


def change_numbers(**changes):
    def send(message, reply):
        numbers = dict(reply.content["numbers"])
        numbers |= {key: value for name, value in changes.items() for key in numbers if key.endswith(name)}
        return Message(RecordDict({"numbers": MetricRecord(numbers)}), reply_to=message)

    return send


EVALUATIONS = {
    "not a number": change_numbers(sum=math.nan),
    "all examples": change_numbers(weight=float(2**40)),
    "too good": change_numbers(sum=1e30),
}
