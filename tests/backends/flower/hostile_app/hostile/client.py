"""Clients that are honest, except for those whose node has `hostile=true`: these go through all attacks in turn."""

from pathlib import Path

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedlga.flower import client_app

from .attacks import ATTACKS, EVALUATIONS
from .task import model, train_data

WORK = {"num-examples": 40, "num-steps": 2, "num-steps-asked": 2}

honest = client_app(model, train_data)
app = ClientApp()


@app.query()
def who(message, context):
    reply = honest(message, context)
    if "claims" in context.node_config:
        reply.content["numbers"]["device"] = context.node_config["claims"]
    return reply


@app.train()
def train(message, context):
    if context.run_config["silent"]:  # nobody says how many steps it did
        return train_for_strategy(message, {"num-examples": 40})
    reply = honest(message, context) if "setup" in message.content else train_for_strategy(message, WORK)
    return attack(ATTACKS, "trained", message, reply, context)


@app.evaluate()
def evaluate(message, context):
    return attack(EVALUATIONS, "evaluated", message, honest(message, context), context)


def train_for_strategy(message, numbers):
    """Do what a client of Flower's own template does, in two steps that move every weight by a hundredth."""
    state = {name: array.numpy() for name, array in message.content["arrays"].items()}
    moved = model()
    moved.load_state_dict({name: moved.state_dict()[name].new_tensor(array + 0.01) for name, array in state.items()})
    content = RecordDict({"arrays": ArrayRecord(moved.state_dict()), "metrics": MetricRecord(numbers)})
    return Message(content, reply_to=message)


def attack(attacks, kind, message, reply, context):
    if not context.node_config.get("hostile"):
        return reply
    with (Path(context.node_config["state-dir"]).parent / kind).open("a+") as count:
        count.write(".")
        number = count.tell() - 1
    return list(attacks.values())[number % len(attacks)](message, reply)
