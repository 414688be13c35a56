"""A PyTorch model as the training loop sees it."""

import contextlib
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import nn

from spotmpi.checkpoint.device import copy_on_device, on_host
from spotmpi.programs.checkpoint import PARAMETERS, State
from spotmpi.programs.loop import Objective
from spotmpi.programs.reporting import IterationClock, WallClock

FP32, BF16 = "fp32", "bf16"
_OPTIMIZER = "optimizer/"


class TorchAdapter:
    """Trains the model *distributed*, which is inside DDP if there are several ranks, with *optimizer*.

    A parameter group with a ``rate_factor`` has that many times the learning rate. With *precision* bf16 the model's
    forward pass, and with it the backward one, computes in bfloat16 where autocast says that this is safe; parameters
    stay fp32. The loss gets *distributed*, and the evaluation the model without DDP.
    """

    def __init__(
        self,
        distributed: nn.Module,
        optimizer: torch.optim.Optimizer,
        objective: Objective,
        precision: str = FP32,
    ) -> None:
        self._distributed = distributed
        self._model: nn.Module = getattr(distributed, "module", distributed)
        self._optimizer = optimizer
        self._objective = objective
        self._lower = precision == BF16
        self._device = next(self._model.parameters()).device
        self.clock: IterationClock = CudaClock() if self._device.type == "cuda" else WallClock()

    def step(self, parts: Sequence[Any], iteration: int, seeds: Sequence[int]) -> Mapping[str, Any]:
        """One update from *parts*: arrays, or lists and dicts of them; *seeds* are those of all generators."""
        if self._objective.rate:
            for group in self._optimizer.param_groups:
                group["lr"] = self._objective.rate(iteration) * group.get("rate_factor", 1.0)
        self._distributed.train()
        self._optimizer.zero_grad(set_to_none=True)
        self._objective.prepare(parts)
        sums: dict[str, Any] = {}
        for number, (part, seed) in enumerate(zip(parts, seeds, strict=True), start=1):
            random.seed(seed)
            np.random.seed(seed)
            torch.manual_seed(seed)
            with self._gradients_kept(number < len(parts)):
                for name, value in self._backward(on_device(part, self._device), len(parts)).items():
                    sums[name] = sums[name] + value if name in sums else value
        self._optimizer.step()
        return sums if len(parts) == 1 else {name: value / len(parts) for name, value in sums.items()}

    def _backward(self, part: Any, parts: int) -> Mapping[str, Any]:
        """Add the gradient of one of *parts*, and give its scalars."""
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._lower):
            loss, scalars = self._objective.loss(self._distributed, part)
        (loss if parts == 1 else loss / parts).backward()
        return {"loss": loss.detach(), **scalars}

    def _gradients_kept(self, kept: bool) -> AbstractContextManager[None]:
        """Whether DDP leaves gradients on their rank, to average them with those of the last part."""
        no_sync = getattr(self._distributed, "no_sync", None)
        return no_sync() if kept and no_sync else contextlib.nullcontext()

    def state(self) -> State:
        """Parameters, buffers and the optimizer's state."""
        tensors = dict(self._tensors())
        copies = copy_on_device(list(tensors.values()))
        return {
            name: value.detach().cpu().numpy() if copy is None else copy
            for (name, value), copy in zip(tensors.items(), copies, strict=True)
        }

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, value in self._model.state_dict().items():
            yield f"{PARAMETERS}{name}", value
        for number, values in self._optimizer.state_dict()["state"].items():
            for key, value in values.items():
                if value is not None:
                    yield f"{_OPTIMIZER}{number}/{key}", torch.as_tensor(value)

    def load_state(self, state: State) -> None:
        """Take over parameters, buffers and the optimizer's state."""
        model = {name.removeprefix(PARAMETERS): _tensor(value) for name, value in _below(state, PARAMETERS)}
        self._model.load_state_dict(model)
        optimizer_state: dict[int, dict[str, torch.Tensor]] = {}
        for name, value in _below(state, _OPTIMIZER):
            number, key = name.removeprefix(_OPTIMIZER).split("/", 1)
            optimizer_state.setdefault(int(number), {})[key] = _tensor(value)
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": optimizer_state})

    def evaluate(self) -> Mapping[str, float]:
        """The scalars of the evaluation, in test mode."""
        self._model.eval()
        with torch.no_grad():
            return self._objective.evaluate(self._model)


class CudaClock:
    """Marks on the GPU's own stream: a rank hands out work ahead of time, so the host's clock would mislead."""

    def mark(self) -> torch.cuda.Event:
        """An event on the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Seconds between two events; waits for the later one."""
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000


def on_device(batch: Any, device: torch.device) -> Any:
    """*batch* with every NumPy array in its lists, tuples and dicts as a tensor on *device*."""
    if isinstance(batch, np.ndarray):
        return torch.from_numpy(batch).to(device)
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {name: on_device(value, device) for name, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)(on_device(value, device) for value in batch)
    return batch


def _below(state: State, prefix: str) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in state.items() if name.startswith(prefix)]


def _tensor(value: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(on_host(value)))
