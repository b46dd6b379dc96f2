"""Writes models whose run costs next to nothing, so that what is measured is the call."""

import os
import sys

import onnx
from onnx import TensorProto, helper

FOLDER = sys.argv[1]
FLOAT = TensorProto.FLOAT


def save(name, nodes, inputs, outputs, size):
    value = lambda each: helper.make_tensor_value_info(each, FLOAT, [size])
    graph = helper.make_graph(nodes, name, [value(each) for each in inputs], [value(each) for each in outputs])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, os.path.join(FOLDER, f"{name}.onnx"))


def add(one, other, result):
    return helper.make_node("Add", [one, other], [result])


save("add_1", [add("a", "b", "y")], ["a", "b"], ["y"], 1)
chain = ["a", *[f"h{step}" for step in range(49)], "y"]
save("add_16_deep_50", [add(one, "b", other) for one, other in zip(chain, chain[1:])], ["a", "b"], ["y"], 16)
names = [f"x{number}" for number in range(64)]
save("in_65_out_64", [add(name, "b", f"{name}_out") for name in names], ["b", *names], [f"{name}_out" for name in names], 4)
