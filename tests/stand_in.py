"""A device that every machine has, on which mixing of devices is found; and machines that seem to have another one."""

import ctypes
import platform
import sys
from importlib.machinery import ModuleSpec

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class StandInDevice(TorchDispatchMode):
    """Torch's meta device takes the place of a GPU: an operation on tensors of it and of the CPU is an error, as there.

    Meta tensors have no values. What a step reads of them is made up, where it is read: zeros; the tokens of a mixture
    of experts all go to the first.
    """

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function._can_decompose():  # under inference_mode operations come whole; what they are made of is looked at
            with self:
                return function.decompose(*args, **kwargs)
        tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
        devices = {tensor.device.type for tensor in tensors if tensor.ndim}  # a CPU's scalars may meet any device
        aten = torch.ops.aten
        if (
            function in (aten._local_scalar_dense.default, aten.item.default, aten.is_nonzero.default)
            and tensors[0].is_meta
        ):
            return tensors[0].dtype == torch.bool or torch.zeros((), dtype=tensors[0].dtype).item()
        if function is aten.nonzero.default and tensors[0].is_meta:
            return torch.ones_like(tensors[0], device="cpu").nonzero()
        if function is aten.isfinite.default or function is aten.all.default:
            return torch.ones_like(function(*args, **kwargs), device="cpu")
        if function is aten.bincount.default and tensors[0].is_meta:
            return torch.tensor([len(tensors[0]), *[0] * (kwargs.get("minlength", 0) - 1)])
        if function in (aten._to_copy.default, aten.copy_.default):
            if tensors[-1].is_meta and (kwargs.get("device") or tensors[0].device).type != "meta":
                return torch.zeros_like(tensors[-1], device="cpu", dtype=kwargs.get("dtype"))
            return function(*args, **kwargs)
        assert len(devices) < 2, f"{function} mixes devices: {[(t.device.type, tuple(t.shape)) for t in tensors]}"
        return function(*args, **kwargs)


class _ManagementLibrary:
    """What the driver says of its devices."""

    def __init__(self, count):
        self._count = count

    def nvmlInit_v2(self):
        return 0

    def nvmlDeviceGetCount_v2(self, pointer):
        pointer._obj.value = self._count
        return 0


class Machine:
    """Makes this machine look like another one: how its torch was built, whether a driver loads, what torch finds.

    Nothing can compute on the devices that it seems to have.
    """

    DRIVERS = ("libcuda.so.1", "libamdhip64.so", "nvcuda.dll")

    def __init__(self, monkeypatch, folder):
        self._patch, self._folder, self._load = monkeypatch.setattr, folder, ctypes.CDLL
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        self._made = {name: getattr(torch, name) for name in ("ones", "zeros")}

    def __call__(self, *, built="12.8", driver=True, count=1, apple=False):
        version = f"from typing import Optional\ncuda: Optional[str] = {built!r}\nhip: Optional[str] = None\n"
        (self._folder / "version.py").write_text(version)
        self._patch(torch, "__spec__", ModuleSpec("torch", None, origin=str(self._folder / "__init__.py")))
        self._patch(torch.cuda, "device_count", lambda: count)
        self._patch(sys, "platform", "darwin" if apple else "linux")
        self._patch(platform, "machine", lambda: "arm64" if apple else "x86_64")
        self._patch(torch.backends.mps, "is_available", lambda: apple)
        if apple:
            for name, real in self._made.items():
                self._patch(torch, name, lambda *size, device=None, real=real, **more: real(*size, **more))

        def loaded(name, *args, **options):
            if name == "libnvidia-ml.so.1":
                if not driver or apple:
                    raise OSError(f"{name}: cannot open shared object file")
                return _ManagementLibrary(count)
            if name not in self.DRIVERS:
                return self._load(name, *args, **options)
            if not driver:
                raise OSError(f"{name}: cannot open shared object file")
            return self._load(None)

        self._patch(ctypes, "CDLL", loaded)
