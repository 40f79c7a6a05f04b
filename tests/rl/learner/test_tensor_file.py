"""Files of tensors are the library's, byte for byte, and are written without holding all tensors."""

import weakref

import pytest
import torch
from safetensors.torch import load_file, save_file

from whet.errors import RunError
from whet.inference.weights.safetensors_files import TensorStream, write_tensors
from whet.rl.learner.weights import copy_in
from whet.rl.learner.whole import Whole, WholeTensors

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool)


def test_a_file_is_that_of_the_library(tmp_path):
    generator = torch.Generator().manual_seed(0)
    tensors = {
        f"{name}.{number}.é": torch.randint(0, 9, shape, generator=generator).to(dtype)
        for number, dtype in enumerate(DTYPES)
        for name, shape in (("b", (3, 5)), ("a", (7,)), ("c", ()), ("d", (0, 4)))
    }
    tensors["turned"] = torch.rand(4, 6, generator=generator).T
    write_tensors(tmp_path / "ours", tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "theirs", {"format": "pt"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert all(torch.equal(found, tensors[name]) for name, found in load_file(tmp_path / "ours").items())


def test_one_layer_is_held_at_a_time(tmp_path):
    parameters = {f"layers.{layer}.{name}": torch.empty(2, 3) for layer in range(4) for name in ("a", "b")}
    alive, most = weakref.WeakSet(), []

    def gather(name):
        made = torch.ones(2, 3)
        alive.add(made)
        most.append(len(alive))
        return made

    whole = WholeTensors(parameters, gather)
    write_tensors(tmp_path / "file", TensorStream.of(whole.described, whole.__getitem__))
    assert len(most) == 8
    assert max(most) <= 4
    assert load_file(tmp_path / "file").keys() == parameters.keys()


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"\0" * 99), lambda path: path.unlink()])
def test_a_file_that_cannot_be_read_is_named(tmp_path, damage):
    path = tmp_path / "weights.safetensors"
    write_tensors(path, {"w": torch.ones(2)})
    damage(path)
    with pytest.raises(RunError, match=r"weights\.safetensors: cannot read the saved weights"):
        copy_in({"w": torch.nn.Parameter(torch.zeros(2))}, path, Whole())
