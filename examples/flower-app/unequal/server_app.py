"""The server: FedLGA in place of FedAvg."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedlga.flower import FedLGA
from unequal.task import net, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds, and print the accuracy at the end."""
    torch.manual_seed(0)
    arrays = ArrayRecord(net().state_dict())
    strategy = FedLGA(fraction_train=context.run_config["fraction-train"], fraction_evaluate=0.0)
    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
        num_rounds=context.run_config["num-server-rounds"],
        evaluate_fn=evaluate,
    )
    last = max(result.evaluate_metrics_serverapp)
    print(f"accuracy after {last} rounds: {result.evaluate_metrics_serverapp[last]['accuracy']:.4f}")  # noqa: T201


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Return the accuracy of the joint model."""
    model = net()
    model.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": test(model)})
