"""A training script that knows nothing of spotmpi: it prints its steps in a format of its own.

It runs alone, under torchrun, and under mpirun, and averages gradients over its processes.
"""

import argparse
import os
import sys

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits


def main() -> None:
    """Train on the digits that scikit-learn ships."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--print-every", type=int, default=10)
    options = parser.parse_args()

    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("RANK", 0)))
    size = int(os.environ.get("OMPI_COMM_WORLD_SIZE", os.environ.get("WORLD_SIZE", 1)))
    if size > 1:
        address = os.environ.get("MASTER_ADDR", "127.0.0.1")
        port = os.environ.get("MASTER_PORT", "29511")
        dist.init_process_group("gloo", init_method=f"tcp://{address}:{port}", rank=rank, world_size=size)

    data = load_digits()
    images = torch.tensor(data.data / 16, dtype=torch.float32)[rank::size]
    labels = torch.tensor(data.target)[rank::size]
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(1, options.steps + 1):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        if size > 1:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= size
        optimizer.step()
        if step % options.print_every == 0:
            print(f"[step {step:>4d}/{options.steps}] training loss = {loss.item():.4f}")
    if size > 1:
        dist.destroy_process_group()
        # A thread of Gloo may still hold a tensor, whose end during Python's own exit aborts the process
        # (https://github.com/pytorch/pytorch/pull/179291).
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
