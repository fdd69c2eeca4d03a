"""Which node is which device, and what is believed of the data that a node says it has."""

from __future__ import annotations

from flwr.proto.node_pb2 import NodeInfo

from fedlga.backends.flower.roster import Roster


class Nodes:
    """The part of Flower's Grid that says who is connected, with which key and name."""

    def __init__(self, names):
        self.names = names

    def get_node_ids(self):
        return list(self.names)

    def get_nodes(self):
        return [NodeInfo(node_id=n, public_key=f"key {n}".encode(), name=name) for n, name in self.names.items()]


def test_a_claim_of_far_more_examples_than_is_usual_counts_as_the_most_there_can_be():
    """The median of 10, 20 and 2^40 is 20. With two devices, nobody knows who is usual."""
    roster = Roster(Nodes({1: None, 2: None, 3: None}), 3, bind=False)
    roster.introduce(1, {"device": 0, "examples": 10})
    roster.introduce(2, {"device": 1, "examples": 2**40})
    assert roster.examples == {0: 10, 1: 2**40}
    roster.introduce(3, {"device": 2, "examples": 20})
    assert roster.examples == {0: 10, 1: 2000, 2: 20}


def test_the_node_that_was_enrolled_as_a_device_takes_it_from_one_that_only_says_so():
    nodes = Nodes({1: None})
    roster = Roster(nodes, 3, bind=True)
    roster.introduce(1, {"device": 0, "examples": 10})
    assert roster.nodes() == {0: 1}
    nodes.names[2] = "device-0"
    roster.introduce(2, {"device": 0, "examples": 10})
    assert roster.nodes() == {0: 2}
    nodes.names[3] = "device-0"
    roster.introduce(3, {"device": 0, "examples": 10})
    assert roster.nodes() == {0: 2}
    assert roster.duplicates[0].startswith("node 3 says")
