"""A Chainer model as the training loop sees it."""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import chainer
import numpy as np

from spotmpi.checkpoint.device import copy_on_device, on_host
from spotmpi.programs.checkpoint import State
from spotmpi.programs.loop import Objective
from spotmpi.programs.reporting import IterationClock, WallClock

_PARAMETERS, _OPTIMIZER = "parameters", "optimizer/"


class ChainerAdapter:
    """Trains *model* with a multi-node *optimizer*; parts of batches are arrays."""

    def __init__(self, model: Any, optimizer: Any, objective: Objective) -> None:
        self.clock: IterationClock = WallClock() if model.xp is np else CudaClock()
        self._model = model
        self._optimizer = optimizer
        self._objective = objective

    def step(self, parts: Sequence[Any], iteration: int, seeds: Sequence[int]) -> Mapping[str, Any]:
        """One update from *parts*, host arrays; *seeds* are those of all generators."""
        if self._objective.rate:
            self._optimizer.lr = self._objective.rate(iteration)
        self._objective.prepare(parts)
        self._model.cleargrads()
        sums: dict[str, Any] = {}
        for part, seed in zip(parts, seeds, strict=True):
            random.seed(seed)
            np.random.seed(seed)
            if self._model.xp is not np:
                self._model.xp.random.seed(seed)
            for name, value in self._backward(part, len(parts)).items():
                sums[name] = sums[name] + value if name in sums else value
        self._optimizer.update()
        return sums if len(parts) == 1 else {name: value / len(parts) for name, value in sums.items()}

    def _backward(self, part: Any, parts: int) -> Mapping[str, Any]:
        """Add the gradient of one of *parts*, and give its scalars."""
        with chainer.using_config("train", True):
            loss, scalars = self._objective.loss(self._model, self._model.device.send(part))
        whole = loss if parts == 1 else loss / parts
        whole.backward()
        whole.unchain_backward()
        return {"loss": loss.array, **scalars}

    def state(self) -> State:
        """Parameters, persistent values (batch statistics) and the optimizer's state."""
        arrays = dict(self._arrays())
        copies = copy_on_device(list(arrays.values()))
        return {
            name: _on_host(value) if copy is None else copy
            for (name, value), copy in zip(arrays.items(), copies, strict=True)
        }

    def _arrays(self) -> Iterator[tuple[str, Any]]:
        for name, value in _values(self._model):
            yield f"{_PARAMETERS}{name}", value
        for name, parameter in sorted(self._model.namedparams()):
            for key, value in sorted((parameter.update_rule.state or {}).items()):
                yield f"{_OPTIMIZER}rule{name}:{key}", value
            yield f"{_OPTIMIZER}times{name}", np.array(parameter.update_rule.t)
        yield f"{_OPTIMIZER}t", np.array(self._optimizer.t)

    def load_state(self, state: State) -> None:
        """Take over parameters, persistent values and the optimizer's state."""
        state = {name: on_host(value) for name, value in state.items()}
        _scatter(self._model, _PARAMETERS, state)
        for name, parameter in self._model.namedparams():
            rule = parameter.update_rule
            rule.t = int(state[f"{_OPTIMIZER}times{name}"])
            prefix = f"{_OPTIMIZER}rule{name}:"
            saved = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
            if saved:
                rule._init_states(parameter)
                for key, value in saved.items():
                    rule.state[key] = parameter.device.send(value) if value.ndim else value[()]
        self._optimizer.actual_optimizer.t = int(state[f"{_OPTIMIZER}t"])

    def evaluate(self) -> Mapping[str, float]:
        """The scalars of the evaluation, in test mode."""
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            return self._objective.evaluate(self._model)


class CudaClock:
    """Marks on the GPU's own stream: a rank hands out work ahead of time, so the host's clock would mislead."""

    def mark(self) -> Any:
        """An event on the current stream."""
        event = chainer.cuda.cupy.cuda.Event()
        event.record()
        return event

    def seconds(self, start: Any, end: Any) -> float:
        """Seconds between two events; waits for the later one."""
        end.synchronize()
        return float(chainer.cuda.cupy.cuda.get_elapsed_time(start, end)) / 1000


def _scatter(model: Any, prefix: str, state: State) -> None:
    for name, parameter in model.namedparams():
        parameter.array[...] = parameter.device.send(state[f"{prefix}{name}"])
    for path, link in model.namedlinks():
        for name in link._persistent:
            value = state[f"{prefix}{_join(path, name)}"]
            current = getattr(link, name)
            if isinstance(current, (int, float)):
                setattr(link, name, type(current)(value))
            else:
                current[...] = link.device.send(value)


def _values(model: Any) -> list[tuple[str, Any]]:
    values = [(name, parameter.array) for name, parameter in model.namedparams()]
    for path, link in model.namedlinks():
        values += [(_join(path, name), getattr(link, name)) for name in sorted(link._persistent)]
    return values


def _join(path: str, name: str) -> str:
    return f"{path.rstrip('/')}/{name}"


def _on_host(value: Any) -> Any:
    return np.asarray(chainer.cuda.to_cpu(value) if hasattr(value, "shape") else value)
