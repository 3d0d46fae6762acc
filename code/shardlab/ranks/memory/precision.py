"""Mixed precision: compute in 16 bits, update in 32.

Micikevicius et al. 2018 (https://arxiv.org/abs/1710.03740).
The model is a 16-bit copy of fp32 master weights, because in 16 bits a step that is small against
its weight would change nothing. In fp16 the loss is also scaled up, because small gradients would
become zero; bf16 has the range of fp32.

    model = transformer.Transformer(spec).to(torch.float16)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
    optimizer = MasterWeights(adam, loss_scale=LossScale())
    optimizer.backward(transformer.loss(model(tokens).float(), targets))
    optimizer.step()
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from shardlab import comm

HALVES = (torch.float16, torch.bfloat16)


class LossScale:
    """A dynamic loss scale: it halves after an overflow, and doubles after `good_steps` good steps.

    The defaults are those of torch.amp.GradScaler.
    """

    def __init__(self, value: float = 2.0**16, good_steps: int = 2000):
        if value <= 0 or good_steps < 1:
            raise ValueError(
                f"value={value} and good_steps={good_steps} cannot scale a loss; "
                "use a value above 0, and at least 1 good step"
            )
        self.value = value
        self.good_steps = good_steps
        self._good = 0  # good steps since the last change

    def update(self, overflowed: bool) -> None:
        """Adapt the scale; call it after every step, taken or skipped."""
        self._good = 0 if overflowed else self._good + 1
        if overflowed:
            self.value /= 2
        elif self._good == self.good_steps:
            self.value *= 2
            self._good = 0


class MasterWeights:
    """An optimizer that steps on fp32 copies of 16-bit parameters.

    optimizer   any that needs no closure, on the model's 16-bit parameters; from now on it steps on
                `masters`
    loss_scale  for fp16; a step whose gradients overflowed is skipped. None: no scale, and every
                step is taken
    group       ranks that must skip a step together although they have different gradients, as in
                ZeRO and tensor parallelism; an average overflows on all its ranks

    Wrap the model in DataParallel first: the masters start as copies of the weights.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        loss_scale: LossScale | None = None,
        group: comm.Group | None = None,
    ):
        self.optimizer = optimizer
        self.loss_scale = loss_scale
        self.group = group
        self.parameters: list[Tensor] = []
        self.masters: list[Tensor] = []  # clip their gradients, after `collect`
        for options in optimizer.param_groups:
            options["params"] = [self._master(parameter) for parameter in options["params"]]

    def _master(self, parameter: Tensor) -> Tensor:
        if parameter.dtype not in HALVES:
            raise ValueError(
                f"a parameter is {parameter.dtype}; use model.to(torch.bfloat16), "
                "or give it an optimizer of its own"
            )
        master = parameter.detach().float().requires_grad_(parameter.requires_grad)
        state = self.optimizer.state.pop(parameter, {})  # some optimizers have made it already
        self.optimizer.state[master] = {name: _fp32(value) for name, value in state.items()}
        self.parameters.append(parameter)
        self.masters.append(master)
        return master

    @property
    def scale(self) -> float:
        """The factor by which the loss is multiplied."""
        return 1.0 if self.loss_scale is None else self.loss_scale.value

    def backward(self, loss: Tensor) -> None:
        """Run backward from the scaled fp32 loss; in fp16 the scale itself may overflow."""
        (loss * self.scale).backward()

    @torch.no_grad()
    def collect(self) -> None:
        """Add the unscaled gradients to those of the masters, and free them.

        `step` calls it. Call it after each microbatch to accumulate in fp32, for 4 bytes per
        parameter instead of 2; but not inside DataParallel's no_sync, where gradients are not yet
        averaged.
        """
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            if parameter.grad is not None:
                gradient = parameter.grad.float() / self.scale
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
                parameter.grad = None

    @torch.no_grad()
    def step(self) -> bool:
        """Step the masters and round them to the parameters, unless a gradient overflowed.

        Returns whether the step was taken. The gradients are freed.
        """
        self.collect()
        overflowed = self.loss_scale is not None and self._overflowed()
        if not overflowed:
            self.optimizer.step()
            for parameter, master in zip(self.parameters, self.masters, strict=True):
                parameter.copy_(master)
        if self.loss_scale is not None:
            self.loss_scale.update(overflowed)
        self.optimizer.zero_grad()
        return not overflowed

    def _overflowed(self) -> bool:
        """Tell whether a gradient has overflowed, on this rank or on one of the group."""
        gradients = [master.grad for master in self.masters if master.grad is not None]
        here = not all(bool(gradient.isfinite().all()) for gradient in gradients)
        if self.group is None:
            return here
        flag = torch.tensor(float(here), device=comm.device(self.group))  # []
        return bool(comm.all_reduce(flag, self.group, "max"))

    def nbytes(self) -> dict[str, int]:
        """Count the resident bytes of parameters, gradients and optimizer states.

        The names are those of a recipe in `costs`. Adam's count of steps, a single number for each
        tensor, is left out.
        """
        owners = [*self.parameters, *self.masters]
        gradients = [tensor.grad for tensor in owners if tensor.grad is not None]
        states = [value for state in self.optimizer.state.values() for value in state.values()]
        moments = [value for value in states if isinstance(value, Tensor) and value.dim()]
        return {
            "parameters": _nbytes(self.parameters),
            "gradients": _nbytes(gradients),
            "optimizer": _nbytes(self.masters) + _nbytes(moments),
        }


def _fp32(value: Any) -> Any:
    return value.float() if torch.is_tensor(value) else value


def _nbytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def lost(tensors: Iterable[Tensor], dtype: torch.dtype, scale: float = 1.0) -> tuple[float, float]:
    """Return which share of the numbers, times `scale`, is zero in this dtype, and which infinite.

    Numbers that are zero anyway do not count.
    """
    numbers = _flat(tensors).double()                                 # [n]
    numbers = numbers[numbers != 0]
    rounded = (numbers * scale).to(dtype)
    return _share(rounded == 0), _share(rounded.isinf())


def unmoved(before: Iterable[Tensor], after: Iterable[Tensor], dtype: torch.dtype) -> float:
    """Return the share of the weights moved by an fp32 step that would not move in this dtype."""
    old, new = _flat(before), _flat(after)                            # [n] each
    moved = old != new
    kept = old.to(dtype)
    stepped = (kept + (new - old)).to(dtype)
    return _share((stepped == kept)[moved])


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def _share(flags: Tensor) -> float:
    return float(flags.double().mean())
