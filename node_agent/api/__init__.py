"""The contract as protobuf: `agent.proto`, and what `make proto` generates from it."""
