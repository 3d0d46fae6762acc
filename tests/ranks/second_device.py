"""Pretend a second device, whose tensors compute on the CPU and fail when mixed with the CPU's own.

Code that forgets which device it is on works on a machine that has the CPU alone, and fails on a GPU. Here it fails
too, by CUDA's rules: an operation takes tensors of one device (numbers, indices and copies aside), and messages are
made of tensors of the device. `as_on_gpus(fn)` is fn for `launch.run`, on ranks that each have such a device.

The name "lazy" stands for the device, because autograd runs that one's backward on the calling thread, too.
"""

import torch
from torch.distributed import device_mesh, distributed_c10d
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

from shardlab import comm, launch

DEVICE = torch.device("lazy", 0)
DESUGARED = (AsyncCollectiveTensor, DTensor)
MAY_MIX = {"aten::copy_", "aten::_to_copy", "aten::index", "aten::index_put_", "aten::set_"}


class Lent(torch.Tensor):
    """A tensor of the second device; `here` holds its numbers."""

    @staticmethod
    def __new__(cls, here):
        shape = {"strides": here.stride(), "storage_offset": here.storage_offset()}
        return cls._make_wrapper_subclass(cls, here.shape, dtype=here.dtype, device=DEVICE, **shape)

    def __init__(self, here):
        self.here = here

    def __reduce_ex__(self, protocol):
        return self.here.detach().__reduce_ex__(protocol)  # home: to the CPU

    def tolist(self):
        return self.here.tolist()

    def untyped_storage(self):
        return self.here.untyped_storage()  # ZeRO-3 makes it empty, and full again

    @property
    def data(self):
        return torch.Tensor.data.__get__(self)

    @data.setter
    def data(self, other):
        torch.Tensor.data.__set__(self, other)
        self.here = other.here

    @classmethod
    def __torch_dispatch__(cls, *_):
        raise RuntimeError("a tensor of the second device was used after its run")


class SecondDevice(TorchDispatchMode):
    """A mode in which there are two devices."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(each, DESUGARED) for each in types):
            return NotImplemented  # what is made of other tensors comes back with these
        name, kwargs = func._schema.name, kwargs or {}
        tensors = [*_tensors(args), *_tensors(kwargs.values())]
        lent = [x for x in tensors if isinstance(x, Lent)]
        sends = name.startswith("c10d") and name != "c10d::barrier"
        own = [x for x in tensors if not isinstance(x, Lent) and (x.dim() or sends)]
        if own and sends:
            raise RuntimeError(f"{name} of a tensor on the CPU, but the group talks from the second device")
        if own and lent and name not in MAY_MIX:
            raise RuntimeError(f"{name} of tensors on two devices")
        if name == "aten::_fused_sdp_choice":
            return 0  # the plain formula, which every device has
        if name == "aten::resize_" and lent:  # as all_gather_object does, where ranks return more or less
            args[0].here.resize_(args[1])  # what wraps it keeps its shape, at which that function does not look
            return args[0]
        to = kwargs.get("device") or (args[1] if name == "aten::_to_copy" and len(args) > 1 else None)
        there = bool(lent) if to is None else to.type == DEVICE.type
        if there and kwargs.get("generator") is not None:
            raise RuntimeError(f"{name} on the second device with a generator of the CPU")
        result = func(*_each(_numbers, args), **{key: _each(_numbers, x) for key, x in kwargs.items()})
        if not there:
            return result
        if name.startswith("aten::") and name.endswith("_"):
            return args[0]  # changed in place
        result = _each(_lend, result)
        return return_and_correct_aliasing(func, args, kwargs, result) if lent else result


def _tensors(values):
    for x in values:
        if isinstance(x, torch.Tensor):
            yield x
        elif isinstance(x, (list, tuple)):
            yield from _tensors(x)


def _each(change, x):
    """Change `x`, or each value in it; arguments of operations are too flat for torch's slow trees."""
    if isinstance(x, (list, tuple)):
        return type(x)([_each(change, each) for each in x])
    return change(x)


def _numbers(x):
    if isinstance(x, torch.device):
        return torch.device("cpu") if x.type == DEVICE.type else x  # meta stays meta
    return x.here if isinstance(x, Lent) else x


def _lend(x):
    return Lent(x) if isinstance(x, torch.Tensor) and not isinstance(x, Lent) else x


def as_on_gpus(fn):
    """Return a function for `launch.run` whose ranks each have a second device, and join as under torchrun."""

    def on_rank(group, *args):
        comm.device = lambda group: DEVICE
        distributed_c10d._get_object_coll_device = lambda group: DEVICE.type  # as under NCCL
        torch.distributed.ProcessGroup._get_backend = _on_cpu(torch.distributed.ProcessGroup._get_backend)
        device_mesh._mesh_resources.num_devices_per_host = lambda device_type: 1  # torch knows of none
        torch._register_device_module(DEVICE.type, _NoRandomNumbers)  # torch's pipelines ask for the device's state
        torch.__future__.set_overwrite_module_params_on_conversion(True)  # what a tensor wraps cannot be exchanged
        DeviceContext.__torch_function__ = _not_in_backward(DeviceContext.__torch_function__)
        torch._C._set_only_lift_cpu_tensors(True)  # else torch.tensor([1.0], device=DEVICE) passes by the mode
        torch.serialization.register_package(0, lambda storage: None, _restore)
        rebuild = torch._utils._rebuild_tensor
        torch._utils._rebuild_tensor = lambda storage, *shape: _arrived(storage, rebuild(storage, *shape))
        with SecondDevice():
            return launch.run(fn, *args, world_size=group.size())[group.rank()]  # it joins: it runs on a rank

    return on_rank


class _NoRandomNumbers:
    """The module through which torch knows the second device; the CPU draws its random numbers.

    Its streams are the CPU's, which do one thing after another: `fully_shard` asks for some.
    """

    current_device = staticmethod(lambda: DEVICE.index)
    Event, Stream = torch.cpu.Event, torch.cpu.Stream
    stream, current_stream = staticmethod(torch.cpu.stream), staticmethod(torch.cpu.current_stream)

    @staticmethod
    def get_rng_state(device):
        return None

    @staticmethod
    def set_rng_state(state, device):
        pass


def _on_cpu(get_backend):
    """The backend for the second device's tensors, which torch looks up by their device."""
    return lambda group, device: get_backend(group, _numbers(device))


def _not_in_backward(default):
    """A `with torch.device(...)` that pauses while backward runs, which for GPUs is on other threads."""

    def choose(context, func, types, args=(), kwargs=None):
        if torch._C._current_graph_task_id() == -1:
            return default(context, func, types, args, kwargs)
        return func(*args, **(kwargs or {}))

    return choose


_restored = set()  # addresses of the storages that torch.load was asked to put on the second device


def _restore(storage, location):
    there = location.startswith(DEVICE.type)
    (_restored.add if there else _restored.discard)(storage.data_ptr())
    return storage if there else None


def _arrived(storage, tensor):
    return Lent(tensor) if storage._untyped_storage.data_ptr() in _restored else tensor
