"""What a round is: its types, policies, completion, aggregation rules and server optimisers."""
