"""The state of a PyTorch program, and the library that reads the same files."""

from __future__ import annotations

import pytest

from tests.programs.conftest import Image

pytestmark = [pytest.mark.images]

ROUND_TRIP = """
import torch
from safetensors.torch import load
from spotmpi.checkpoint.state import decode, encode

model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5))
optimizer = torch.optim.Adam(model.parameters())
model(torch.randn(4, 3)).sum().backward()
optimizer.step()
kinds = [torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.bool, torch.complex64, torch.uint8]
tensors = {str(kind): torch.tensor([[1, 0, 2]]).to(kind) for kind in kinds}
complex_ = tensors["torch.complex64"] * (1 + 2j)
tensors |= {"conjugate": complex_.conj(), "negative": complex_.conj().imag}
tensors |= {"scalar": torch.tensor(1.5), "empty": torch.empty(0, 3), "strided": torch.arange(6).reshape(2, 3).T}
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "tensors": tensors}
data = bytearray(b"".join(encode(state)))
again = decode(data)

def compare(one, other):
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        [compare(one[key], other[key]) for key in one]
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        [compare(*pair) for pair in zip(one, other)]
    else:
        assert one == other

compare(state, again)
model.load_state_dict(again["model"])
optimizer.load_state_dict(again["optimizer"])
by_library = load(bytes(data))
assert torch.equal(by_library["model/0.weight"], state["model"]["0.weight"])
assert by_library["tensors/torch.bfloat16"].dtype == torch.bfloat16
for lost in (torch.eye(2).to_sparse(), torch.eye(2).to_sparse_csr(), torch.empty(2, device="meta"),
             torch.quantize_per_tensor(torch.eye(2), 0.1, 0, torch.qint8)):
    try:
        encode({"model": {"weight": lost}})
    except TypeError as error:
        expected = f"a sparse, quantized, nested or meta tensor of {lost.dtype} at model/weight,"
        assert expected in str(error), error
    else:
        raise AssertionError(lost)
print("equal")
"""


def test_tensors_come_back_and_the_library_of_safetensors_reads_them(pytorch: Image) -> None:
    assert pytorch.alone("-c", ROUND_TRIP).succeed().plain[-1] == "equal"
