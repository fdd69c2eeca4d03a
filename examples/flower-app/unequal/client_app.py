"""The client: every other device is slow, and does only a quarter of its steps."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from unequal.task import load_data, net
from unequal.task import train as train_steps

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on local data."""
    model = net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    partition_id, num_partitions = context.node_config["partition-id"], context.node_config["num-partitions"]
    loader = load_data(partition_id, num_partitions)
    slow = partition_id % 2 == 1
    asked = context.run_config["local-steps"]
    steps = asked // (4 if slow else 1)
    loss = train_steps(model, loader, steps, msg.content["config"]["lr"])
    metrics = {
        "train_loss": loss,
        "num-examples": len(loader.dataset),
        "num-steps": steps,
        "num-steps-asked": asked,
    }
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)
