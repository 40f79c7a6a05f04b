"""Bodies in protobuf: what a `forward_backward` brings, checked, and what it answers.

The messages are those of the SDK (`tinker.proto.tinker_public_pb2`); everything in a body is hostile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from tinker.proto import tinker_public_pb2 as pb

from whet.hub.errors import HubError
from whet.rl.learner.adapters.work import AdapterOutput, Datum, DatumLoss
from whet.tinker.losses import NamedLoss, loss_named, loss_of

TARGETS = "target_tokens"
CUT_OFF = "cut off"
"""In place of a loss: the message was too large."""
DTYPES: dict[int, np.dtype[Any]] = {pb.DTYPE_FLOAT32: np.dtype("<f4"), pb.DTYPE_INT64: np.dtype("<i8")}
TARGET_LIMIT = 1 << 24
"""Elements of one tensor: a matrix that is sent sparse may not claim more."""


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """What the base model can read."""

    vocabulary: int
    context: int


def parse(body: bytes) -> pb.ForwardBackwardRequest:
    """The message of a body. Raises `HubError` (malformed) where it is none."""
    message = pb.ForwardBackwardRequest()
    try:
        message.ParseFromString(body)
    except DecodeError:
        raise HubError(
            "malformed", "the body is no ForwardBackwardRequest in protobuf, as tinker 0.38 sends it."
        ) from None
    return message


def cut_off(start: bytes) -> pb.ForwardBackwardRequest | None:
    """What stands in the log for a message that was not read to its end: its model and its number, which come first.

    None where they do not.
    """
    try:
        last = 3 + start[1]  # the length of a model's id, which is one byte; then a tag, and the number
        while start[last] & 0x80:
            last += 1
        message = parse(start[: last + 1])
    except (IndexError, HubError):
        return None
    message.loss_fn = CUT_OFF
    return message if message.model_id and message.seq_id else None


def read(message: pb.ForwardBackwardRequest, limits: TokenLimits) -> tuple[list[Datum], DatumLoss]:
    """The sequences and the loss. Raises `HubError` naming what is wrong and where."""
    if message.loss_fn == CUT_OFF:
        raise HubError("too_large", "the request is larger than this server takes. Send fewer targets of each token.")
    config: dict[str, float | str] = dict(message.loss_fn_config)
    for key, value in message.loss_fn_config_v2.items():
        config[key] = value.text if value.WhichOneof("value") == "text" else value.number
    loss = loss_of(message.loss_fn, config)
    named = loss_named(message.loss_fn)
    if not message.data:
        raise HubError("invalid", "data: there is no sequence. Send at least one.")
    return [_datum(f"data[{i}]", datum, named, limits) for i, datum in enumerate(message.data)], loss


def _datum(where: str, message: pb.Datum, loss: NamedLoss, limits: TokenLimits) -> Datum:
    tokens = _tokens(where, message.model_input)
    if not 0 < len(tokens) <= limits.context:
        raise HubError("invalid", f"{where}: it has {len(tokens)} tokens; there have to be 1 to {limits.context}.")
    _check_ids(f"{where}.model_input", tokens, limits)
    inputs = {name: tensor(f"{where}.{name[:60]}", sent) for name, sent in message.loss_fn_inputs.items()}
    known = (TARGETS, *loss.needs, *loss.may)
    for name in inputs.keys() - set(known):
        raise HubError("invalid", f"{where}: this loss has no input '{name[:60]}'. It has {', '.join(known)}.")
    for name in (TARGETS, *loss.needs):
        if name not in inputs:
            raise HubError("invalid", f"{where}: the input '{name}' is missing.")
    targets = inputs[TARGETS]
    matrix = targets.ndim == 2 and targets.shape[1] > 0 and not loss.needs
    if targets.dtype.kind != "i" or targets.shape[:1] != (len(tokens),) or not (targets.ndim == 1 or matrix):
        raise HubError("invalid", f"{where}.{TARGETS}: one integer for each of the {len(tokens)} tokens is needed.")
    _check_ids(f"{where}.{TARGETS}", targets, limits)
    for name, values in inputs.items():
        if values.shape != targets.shape:
            said = f"its shape is {list(values.shape)}, that of {TARGETS} {list(targets.shape)}"
            raise HubError("invalid", f"{where}.{name}: {said}; they have to be the same.")
        if name != TARGETS:
            inputs[name] = values.astype(np.float32)
            if not np.isfinite(inputs[name]).all():
                raise HubError("invalid", f"{where}.{name}: a value is not finite.")
    return Datum(tokens.tolist(), inputs)


def _tokens(where: str, chunks: Iterable[pb.Chunk]) -> NDArray[np.int64]:
    parts = []
    for chunk in chunks:
        kind = chunk.WhichOneof("chunk")
        if kind != "encoded_text":
            raise HubError("invalid", f"{where}.model_input: this server reads tokens only, not '{kind}'.")
        parts.append(_numbers(f"{where}.model_input", chunk.encoded_text.tokens, np.dtype("<i4")).astype(np.int64))
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _check_ids(where: str, ids: NDArray[Any], limits: TokenLimits) -> None:
    outside = (ids < 0) | (ids >= limits.vocabulary)
    if outside.any():
        raise HubError("invalid", f"{where}: the id {int(ids[outside][0])} is not in 0 to {limits.vocabulary - 1}.")


def _numbers(where: str, data: bytes, dtype: np.dtype[Any]) -> NDArray[Any]:
    if len(data) % dtype.itemsize:
        raise HubError("invalid", f"{where}: {len(data)} bytes are no whole numbers of {dtype.itemsize} bytes.")
    return np.frombuffer(data, dtype)


def tensor(where: str, message: pb.Tensor) -> NDArray[Any]:
    """The values of a tensor; 0 where a sparse one has none. Raises `HubError` naming what is wrong with it."""
    if message.dtype not in DTYPES:
        raise HubError("invalid", f"{where}: its type is neither float32 nor int64.")
    dtype, shape = DTYPES[message.dtype], tuple(message.shape)
    if message.WhichOneof("encoding") == "sparse_csr":
        return _dense(where, message.sparse_csr, dtype, shape)
    values = _numbers(where, message.dense, dtype)
    if any(size < 0 for size in shape) or (shape and math.prod(shape) != values.size):
        raise HubError("invalid", f"{where}: {values.size} values do not have the shape {list(shape)}.")
    return values.reshape(shape) if shape else values


def _dense(where: str, csr: pb.SparseCsr, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    index = np.dtype("<i8")
    values, rows = _numbers(where, csr.values, dtype), _numbers(where, csr.crow_indices, index)
    columns = _numbers(where, csr.col_indices, index)
    if len(shape) != 2 or min(shape) < 0 or math.prod(shape) > TARGET_LIMIT or rows.size != shape[0] + 1:
        raise HubError("invalid", f"{where}: a sparse tensor has two dimensions and a row index for each row.")
    counts = np.diff(rows)
    whole = rows[0] == 0 and rows[-1] == values.size == columns.size and (counts >= 0).all()
    if not whole or ((columns < 0) | (columns >= shape[1])).any():
        raise HubError("invalid", f"{where}: the indices of the sparse tensor do not fit its shape.")
    dense = np.zeros(shape, dtype)
    dense[np.repeat(np.arange(shape[0]), counts), columns] = values
    return dense


def written(output: AdapterOutput) -> bytes:
    """The answer: the logprobs of each sequence, and the sums by the names `NAME:sum`."""
    message = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
    for _, group in groupby(output.logprobs, key=lambda array: array.shape[1:]):
        _add_record(message, list(group))
    for name, value in {"loss": output.loss, **output.sums}.items():
        message.metrics[f"{name}:sum"] = value
    return bytes(message.SerializeToString())


def _add_record(message: pb.ForwardBackwardOutput, arrays: Sequence[NDArray[np.float32]]) -> None:
    record = message.loss_fn_outputs.add(num_datums=len(arrays))
    data = [np.ascontiguousarray(array, "<f4") for array in arrays]
    offsets = np.cumsum([0, *(array.nbytes for array in data)])
    tensor = record.fields["logprobs"]
    tensor.data, tensor.offsets = b"".join(array.tobytes() for array in data), offsets.astype("<i8").tobytes()
    tensor.dtype = pb.DTYPE_FLOAT32
    tensor.trailing_shape.extend(data[0].shape[1:])
