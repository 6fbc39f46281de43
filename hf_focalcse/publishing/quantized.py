"""model.onnx -> model_quantized.onnx: the same graph with its weights in 8 bits, computed in float32.

Only weights are rounded, so a text has one vector whatever texts are beside it. Dynamic quantisation, which also
rounds the activations, gives a text another vector in another batch and is no smaller.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

BLOCK = 32  # weights that share a scale
SMALLEST = 4096  # numbers; smaller matrices stay as they are
DOMAIN = "com.microsoft"  # whose MatMulNBits every onnxruntime has, also the one of browsers


def write_quantized(source: Path, target: Path) -> None:
    """Write ``target``, which takes and gives what ``source`` does."""
    import onnx

    graph_file = onnx.load(str(source))
    graph = graph_file.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:  # a weight that layers share has a name for each of them
        if node.op_type == "Identity" and node.input[0] in weights:
            weights[node.output[0]] = weights[node.input[0]]
    made: dict[str, list[Any]] = {}  # initializer and kind -> the tensors that take its place; weights may be shared
    nodes = []
    for node in graph.node:
        nodes += _replaced(node, weights, made) or [node]
    taken = {name for node in nodes for name in node.input} | {value.name for value in graph.output}
    nodes = [node for node in nodes if node.op_type != "Identity" or node.output[0] in taken]
    used = {name for node in nodes for name in node.input} | {value.name for value in graph.output}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend([*kept, *(tensor for tensors in made.values() for tensor in tensors)])
    if all(opset.domain != DOMAIN for opset in graph_file.opset_import):
        graph_file.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    onnx.save(graph_file, str(target))


def _replaced(node: Any, weights: dict[str, Any], made: dict[str, list[Any]]) -> list[Any]:
    """The nodes that do with 8 bits what ``node`` does with a matrix of float32; none where it has no such matrix."""
    from onnx import helper, numpy_helper

    place = {"MatMul": 1, "Gemm": 1, "Gather": 0}.get(node.op_type)
    matrix = None if place is None else weights.get(node.input[place])
    if matrix is None or matrix.data_type != 1 or len(matrix.dims) != 2 or np.prod(matrix.dims) < SMALLEST:
        return []
    name, out = matrix.name, node.output[0]
    attributes = {of.name: helper.get_attribute_value(of) for of in node.attribute}
    if node.op_type == "Gather":
        if attributes.get("axis", 0) != 0:
            return []
        if f"{name} rows" not in made:
            made[f"{name} rows"] = _rows(name, numpy_helper.to_array(matrix))
        ids, (rows, scales) = node.input[1], (tensor.name for tensor in made[f"{name} rows"])
        parts = [f"{out}_8bit", f"{out}_float", f"{out}_scale"]
        return [
            helper.make_node("Gather", [rows, ids], [parts[0]], axis=0),
            helper.make_node("Cast", [parts[0]], [parts[1]], to=1),
            helper.make_node("Gather", [scales, ids], [parts[2]], axis=0),
            helper.make_node("Mul", parts[1:], [out]),
        ]
    plain = all(attributes.get(key, default) == default for key, default in (("alpha", 1), ("beta", 1), ("transA", 0)))
    if not plain:
        return []
    # a Linear of two dimensions is exported as Gemm with its own (out, in) matrix, of three as MatMul with (in, out)
    turned = bool(attributes.get("transB", 0))
    rows_in = int(matrix.dims[1] if turned else matrix.dims[0])
    key = f"{name} turned" if turned else name
    if key not in made:
        values = numpy_helper.to_array(matrix)
        made[key] = _blocks(key.replace(" ", "_"), values if turned else values.T)
    biased = node.op_type == "Gemm" and len(node.input) > 2
    product = f"{out}_product" if biased else out
    found = [
        helper.make_node(
            "MatMulNBits",
            [node.input[0], *(tensor.name for tensor in made[key])],
            [product],
            domain=DOMAIN, K=rows_in, N=int(np.prod(matrix.dims)) // rows_in, bits=8, block_size=BLOCK,
        )
    ]  # fmt: skip
    return [*found, helper.make_node("Add", [product, node.input[2]], [out])] if biased else found


def _rows(name: str, values: np.ndarray) -> list[Any]:
    """(V, D) float32 -> (V, D) int8 and the scale of each row, (V, 1)."""
    from onnx import numpy_helper

    scale = _scales(values)
    found = np.rint(values / scale).astype(np.int8)
    return [numpy_helper.from_array(found, f"{name}_8bit"), numpy_helper.from_array(scale, f"{name}_scales")]


def _blocks(name: str, values: np.ndarray) -> list[Any]:
    """(N, K) float32 -> uint8 (N, K / `BLOCK`, `BLOCK`), zero at 128, and the scale of each block, as MatMulNBits
    reads them."""
    from onnx import numpy_helper

    wanted = -(-values.shape[1] // BLOCK) * BLOCK
    padded = np.pad(values, ((0, 0), (0, wanted - values.shape[1]))).reshape(len(values), -1, BLOCK)
    scale = _scales(padded)
    found = (np.rint(padded / scale) + 128).astype(np.uint8)
    return [
        numpy_helper.from_array(found, f"{name}_8bit"),
        numpy_helper.from_array(np.ascontiguousarray(scale.reshape(-1)), f"{name}_scales"),
    ]


def _scales(values: np.ndarray) -> np.ndarray:
    """Of the last axis, (…, 1): its largest value becomes 127; 1 where all are zero."""
    largest = np.abs(values).max(-1, keepdims=True) / 127
    return np.where(largest > 0, largest, 1).astype(np.float32)
