"""Classify points into two rings with DistributedDataParallel: torch's own `env://`, gloo, CPUs."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 128


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_passes", type=int, default=5)
    parser.add_argument("--batches", type=int, default=25, help="batches per rank and pass")
    return parser.parse_args()


def points(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return points in the plane (BATCH, 2), and the ring of each, 0 or 1 (BATCH, 1)."""
    ring = torch.randint(0, 2, (BATCH, 1), generator=generator).float()
    angle = 2 * torch.pi * torch.rand((BATCH, 1), generator=generator)
    radius = 1 + ring + 0.2 * torch.randn((BATCH, 1), generator=generator)
    return radius * torch.cat([angle.cos(), angle.sin()], 1), ring


def digest(model: nn.Module) -> str:
    """Return a digest of all parameters, which is the same on all ranks."""
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:16]


def main() -> None:
    args = options()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1)))
    rule = torch.optim.Adam(model.parameters(), lr=0.02)
    generator = torch.Generator().manual_seed(1 + rank)
    for pass_ in range(args.num_passes):
        total = torch.zeros(1)
        for _ in range(args.batches):
            x, ring = points(generator)
            loss = nn.functional.binary_cross_entropy_with_logits(model(x), ring)
            rule.zero_grad()
            loss.backward()
            rule.step()
            total += loss.detach()
        dist.all_reduce(total)
        print(f"rank {rank} of {ranks}, pass {pass_}: loss {total.item() / args.batches / ranks:.4f}", flush=True)
    print(f"rank {rank}: parameters {digest(model)}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may still release tensors, which aborts an interpreter that is shutting down
