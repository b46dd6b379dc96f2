"""Models that the tests run: small ones that are written here, and those that come with the project."""

import os
from pathlib import Path

import numpy
import onnx
import pytest
from onnx import TensorProto, helper

ROOT = Path(__file__).resolve().parents[3]


def save(folder, name, nodes, inputs, outputs, initializers=(), **model_options):
    """Writes a model of these nodes and gives its path."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, name, [value(*each) for each in inputs], [value(*each) for each in outputs], list(initializers)
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10, **model_options)
    path = os.path.join(folder, f"{name}.onnx")
    onnx.save(model, path)
    return path


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A folder for models."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def linear(models):
    """y = x · w + b with a symbolic batch."""
    weights = numpy.arange(12, dtype=numpy.float32).reshape(4, 3) / 10
    bias = numpy.array([1, 2, 3], dtype=numpy.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Add", ["xw", "b"], ["y"]),
    ]
    constants = [onnx.numpy_helper.from_array(weights, "w"), onnx.numpy_helper.from_array(bias, "b")]
    float32 = TensorProto.FLOAT
    return save(
        models,
        "linear",
        nodes,
        [("x", float32, ["batch", 4])],
        [("y", float32, ["batch", 3])],
        constants,
        producer_name="precast tests",
        doc_string="a product and a sum",
        model_version=3,
    )


@pytest.fixture(scope="session")
def two_outputs(models):
    """sum = a + b, difference = a − b of any sizes that broadcast."""
    nodes = [helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Sub", ["a", "b"], ["difference"])]
    float32, dims = TensorProto.FLOAT, ["n", "m"]
    inputs = [("a", float32, dims), ("b", float32, dims)]
    return save(models, "two_outputs", nodes, inputs, [("sum", float32, dims), ("difference", float32, dims)])


def identity_of(folder, element_type, name):
    """A model that gives its input back."""
    node = helper.make_node("Identity", ["x"], ["y"])
    return save(folder, name, [node], [("x", element_type, ["n"])], [("y", element_type, ["n"])])


@pytest.fixture(scope="session")
def readme_model():
    """The model of the README."""
    return str(ROOT / "models" / "recsys190" / "recsys190.onnx")


@pytest.fixture(scope="session")
def adapter_folder():
    """A small decoder with parameters that adapters replace, and two adapters."""
    return ROOT / "crates" / "generate" / "tests" / "data" / "llama_lora-fp32"


@pytest.fixture(scope="session")
def text_folder():
    """A small decoder with a tokenizer."""
    return ROOT / "crates" / "generate" / "tests" / "data" / "llama-fp32"
