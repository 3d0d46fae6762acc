"""Mixed precision: compute in 16 bits, update in 32 (Micikevicius et al. 2018, https://arxiv.org/abs/1710.03740).

The model is a 16-bit copy of fp32 master weights: a step that is short against its weight would change nothing in 16
bits. In fp16 the loss is scaled up besides, or small gradients would be zero; bf16 reaches as far as fp32 does.

    model = transformer.Transformer(spec).to(torch.float16)
    optimizer = MasterWeights(torch.optim.AdamW(model.parameters(), lr=1e-3), loss_scale=LossScale())
    optimizer.backward(transformer.loss(model(tokens).float(), targets))
    optimizer.step()
"""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

from .. import comm

HALVES = (torch.float16, torch.bfloat16)


class LossScale:
    """A factor for the loss that finds its size: it halves after an overflow and doubles after enough good steps.

    The defaults are those of torch.amp.GradScaler.
    """

    def __init__(self, value: float = 2.0**16, good_steps: int = 2000):
        if value <= 0 or good_steps < 1:
            raise ValueError(f"value={value}, good_steps={good_steps} scale nothing; use more than 0, and at least 1")
        self.value, self.good_steps, self._good = value, good_steps, 0

    def update(self, overflowed: bool) -> None:
        """After every step, taken or skipped."""
        self._good = 0 if overflowed else self._good + 1
        if overflowed:
            self.value /= 2
        elif self._good == self.good_steps:
            self.value, self._good = 2 * self.value, 0


class MasterWeights:
    """An optimizer's step on fp32 copies of 16-bit parameters.

    optimizer   of any kind that needs no closure, on the model's 16-bit parameters; from now on it steps on `masters`
    loss_scale  for fp16; a step whose gradients overflowed is skipped. None: no scale, and every step is taken
    group       ranks that skip together, since an overflow on one must stop all: needed where each has other gradients
                (ZeRO, tensor parallelism); an average overflows on all ranks alike

    Wrap the model in DataParallel first: the masters begin as the weights are then.
    """

    def __init__(self, optimizer: Optimizer, *, loss_scale: LossScale | None = None, group: comm.Group | None = None):
        self.optimizer, self.loss_scale, self.group = optimizer, loss_scale, group
        self.parameters: list[Tensor] = []
        self.masters: list[Tensor] = []  # clip their gradients, after `collect`
        for options in optimizer.param_groups:
            options["params"] = [self._master(parameter) for parameter in options["params"]]

    def _master(self, parameter: Tensor) -> Tensor:
        if parameter.dtype not in HALVES:
            raise ValueError(f"a parameter is {parameter.dtype}; use model.to(torch.bfloat16), or its own optimizer")
        master = parameter.detach().float().requires_grad_(parameter.requires_grad)
        state = self.optimizer.state.pop(parameter, {})  # some optimizers make theirs at once
        self.optimizer.state[master] = {key: v.float() if torch.is_tensor(v) else v for key, v in state.items()}
        self.parameters.append(parameter)
        self.masters.append(master)
        return master

    @property
    def scale(self) -> float:
        """What the loss is multiplied by."""
        return 1.0 if self.loss_scale is None else self.loss_scale.value

    def backward(self, loss: Tensor) -> None:
        """Backward through the scaled loss. Compute the loss in fp32: in fp16 the factor itself may overflow."""
        (loss * self.scale).backward()

    @torch.no_grad()
    def collect(self) -> None:
        """Add the gradients, unscaled, to those of the masters, and free them.

        `step` does so. Called after each microbatch it sums them in fp32, for 4 bytes a parameter instead of 2 (not
        inside DataParallel's no_sync: it would collect what has not been averaged).
        """
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            if parameter.grad is not None:
                gradient = parameter.grad.float() / self.scale
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
                parameter.grad = None

    @torch.no_grad()
    def step(self) -> bool:
        """Step the masters and round them to the parameters, unless a gradient overflowed; says whether it did.

        The gradients are used up.
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
        gradients = [master.grad for master in self.masters if master.grad is not None]
        here = not all(bool(gradient.isfinite().all()) for gradient in gradients)
        if self.group is None:
            return here
        flag = torch.tensor(float(here), device=comm.device(self.group))
        return bool(comm.all_reduce(flag, self.group, "max"))

    def nbytes(self) -> dict[str, int]:
        """Bytes held now, by the parts of a recipe in `costs`; not Adam's count of steps, one number for a tensor."""
        gradients = [tensor.grad for tensor in (*self.parameters, *self.masters)]
        states = [value for state in self.optimizer.state.values() for value in state.values()]
        parts = {
            "parameters": self.parameters,
            "gradients": [gradient for gradient in gradients if gradient is not None],
            "optimizer": self.masters + [value for value in states if isinstance(value, Tensor) and value.dim()],
        }
        return {part: sum(tensor.nbytes for tensor in tensors) for part, tensors in parts.items()}


def lost(tensors: Iterable[Tensor], dtype: torch.dtype, scale: float = 1.0) -> tuple[float, float]:
    """Shares of the numbers that, times the scale, would be zero in this dtype, and infinite; zeros do not count."""
    numbers = torch.cat([tensor.detach().flatten().double() for tensor in tensors])
    numbers = numbers[numbers != 0]
    rounded = (numbers * scale).to(dtype)
    return float((rounded == 0).double().mean()), float(rounded.isinf().double().mean())


def unmoved(before: Iterable[Tensor], after: Iterable[Tensor], dtype: torch.dtype) -> float:
    """Share of the weights that a step of fp32 moves, and would leave as they are if they were kept in this dtype."""
    old, new = (torch.cat([tensor.detach().flatten() for tensor in tensors]) for tensors in (before, after))
    kept, moved = old.to(dtype), old != new
    return float(((kept + (new - old)).to(dtype) == kept)[moved].double().mean())
