"""The aggregator: fedlga's own, or one of its strategies in Flower's loop."""

from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp

import fedlga.flower
from fedlga.flower import server_app

from .task import model, test_data

ours = server_app(model, test_data)
app = ServerApp()


@app.main()
def main(grid, context):
    if not context.run_config["strategy"]:
        ours(grid, context)
        return
    chosen = getattr(fedlga.flower, context.run_config["strategy"])
    # Nobody rests: every attack is to be met, one a round.
    strategy = chosen(fraction_evaluate=0.0, min_available_nodes=3, options={"quarantine": 0})
    result = strategy.start(grid, ArrayRecord(model().state_dict()), num_rounds=context.run_config["rounds"])
    largest = max(float(abs(array.numpy()).max()) for array in result.arrays.values())
    print(f"largest weight {largest:.3f}")
