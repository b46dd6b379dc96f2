"""Write the small models that the tests of the plugin provider run: ort_ep_models.py FOLDER"""
import os
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def value(name, shape, dtype=FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def model(nodes, inputs, outputs, initializers=(), opsets=(("", 17),)):
    graph = helper.make_graph(nodes, "graph", inputs, outputs, list(initializers))
    sets = [helper.make_opsetid(domain, version) for domain, version in opsets]
    return helper.make_model(graph, opset_imports=sets, ir_version=8)


def fixed_weight(name, shape, seed):
    values = np.random.default_rng(seed).standard_normal(shape) * 0.1
    return numpy_helper.from_array(values.astype(np.float32), name)


def mlp():
    """Two products with a batch of any size."""
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"]),
        helper.make_node("Add", ["a", "b0"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("Gemm", ["c", "w1", "b1"], ["y"], transB=1),
    ]
    weights = [
        fixed_weight("w0", (64, 512), 1),
        fixed_weight("b0", (512,), 2),
        fixed_weight("w1", (8, 512), 3),
        fixed_weight("b1", (8,), 4),
    ]
    return model(nodes, [value("x", ["batch", 64])], [value("y", ["batch", 8])], weights)


def add_one():
    """The least that a run can do."""
    nodes = [helper.make_node("Add", ["x", "one"], ["y"])]
    one = numpy_helper.from_array(np.ones(1, np.float32), "one")
    return model(nodes, [value("x", [1])], [value("y", [1])], [one])


def fan(count):
    """One shared and many inputs, as many outputs: for the order of names and for what a tensor costs."""
    nodes = [helper.make_node("Add", [f"x{i}", "shared"], [f"y{i}"]) for i in reversed(range(count))]
    inputs = [value("shared", [4])] + [value(f"x{i}", [4]) for i in range(count)]
    return model(nodes, inputs, [value(f"y{i}", [4]) for i in range(count)])


def chain(count):
    """One node after the other."""
    names = ["x"] + [f"v{i}" for i in range(count - 1)] + ["y"]
    one = numpy_helper.from_array(np.ones(16, np.float32), "one")
    nodes = [helper.make_node("Add", [names[i], "one"], [names[i + 1]]) for i in range(count)]
    return model(nodes, [value("x", [16])], [value("y", [16])], [one])


def foreign_middle():
    """A node in the middle that nobody but the runtime's own kernels knows."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("MurmurHash3", ["a"], ["b"], positive=0, domain="com.microsoft"),
        helper.make_node("Cast", ["b"], ["y"], to=TensorProto.FLOAT),
    ]
    shape = [1, 3, 3]
    return model(nodes, [value("x", shape)], [value("y", shape)], opsets=(("", 17), ("com.microsoft", 1)))


def branches():
    """A body that reads values from outside, decided by an input."""
    then_branch = helper.make_graph(
        [helper.make_node("Mul", ["x", "two"], ["then_out"])], "then", [], [value("then_out", [4])]
    )
    else_branch = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["else_out"])], "else", [], [value("else_out", [4])]
    )
    nodes = [helper.make_node("If", ["flag"], ["y"], then_branch=then_branch, else_branch=else_branch)]
    two = numpy_helper.from_array(np.full(1, 2, np.float32), "two")
    inputs = [value("x", [4]), value("flag", [], TensorProto.BOOL)]
    return model(nodes, inputs, [value("y", [4])], [two])


def captures():
    """A body that reads a value of the graph around it, and a constant that nobody else reads."""
    proto = branches()
    around = helper.make_node("Abs", ["x"], ["seen"])
    proto.graph.node.insert(0, around)
    for attribute in proto.graph.node[1].attribute:
        for node in attribute.g.node:
            node.input[0] = "seen"
    return proto


def nested():
    """Branches inside a branch: one body reads an input that nobody else does, another a value of the body around it."""
    innermost = [
        helper.make_graph([helper.make_node("Mul", ["x", "two"], ["a"])], "inner_then", [], [value("a", [4])]),
        helper.make_graph([helper.make_node("Neg", ["made"], ["b"])], "inner_else", [], [value("b", [4])]),
    ]
    then_nodes = [
        helper.make_node("Add", ["z", "two"], ["made"]),
        helper.make_node("If", ["inner"], ["picked"], then_branch=innermost[0], else_branch=innermost[1]),
        helper.make_node("Abs", ["picked"], ["then_out"]),
    ]
    then_branch = helper.make_graph(then_nodes, "then", [], [value("then_out", [4])])
    else_branch = helper.make_graph(
        [helper.make_node("Sub", ["x", "z"], ["else_out"])], "else", [], [value("else_out", [4])]
    )
    nodes = [
        helper.make_node("If", ["outer"], ["chosen"], then_branch=then_branch, else_branch=else_branch),
        helper.make_node("Exp", ["chosen"], ["y"]),
    ]
    two = numpy_helper.from_array(np.full(1, 2, np.float32), "two")
    flags = [value(name, [], TensorProto.BOOL) for name in ("outer", "inner")]
    return model(nodes, [value("x", [4]), value("z", [4])] + flags, [value("y", [4])], [two])


def rounds():
    """A loop whose body alone reads an input; it carries one value and lists another."""
    body_nodes = [
        helper.make_node("Add", ["carried", "x"], ["next"]),
        helper.make_node("Identity", ["next"], ["listed"]),
        helper.make_node("Identity", ["going"], ["still"]),
    ]
    body_inputs = [
        value("round", [], TensorProto.INT64),
        value("going", [], TensorProto.BOOL),
        value("carried", [4]),
    ]
    body_outputs = [value("still", [], TensorProto.BOOL), value("next", [4]), value("listed", [4])]
    body = helper.make_graph(body_nodes, "body", body_inputs, body_outputs)
    nodes = [
        helper.make_node("Loop", ["count", "", "start"], ["last", "all"], body=body),
        helper.make_node("Neg", ["all"], ["y"]),
    ]
    inputs = [value("x", [4]), value("start", [4]), value("count", [], TensorProto.INT64)]
    return model(nodes, inputs, [value("last", [4]), value("y", [None, 4])])


def scanned():
    """A scan whose body alone reads an input."""
    body_nodes = [helper.make_node("Mul", ["row", "x"], ["scaled"]), helper.make_node("Identity", ["s"], ["t"])]
    body = helper.make_graph(
        body_nodes, "body", [value("s", [4]), value("row", [4])], [value("t", [4]), value("scaled", [4])]
    )
    nodes = [helper.make_node("Scan", ["start", "rows"], ["last", "y"], body=body, num_scan_inputs=1)]
    inputs = [value("x", [4]), value("start", [4]), value("rows", [3, 4])]
    return model(nodes, inputs, [value("last", [4]), value("y", [3, 4])])


def sizes_by_values():
    """An output whose size only a run decides."""
    nodes = [helper.make_node("NonZero", ["x"], ["y"])]
    return model(nodes, [value("x", ["n"])], [value("y", [1, None], TensorProto.INT64)])


def shape_input():
    """A shape that is an input, so that its values decide the form of the model."""
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    inputs = [value("x", ["n"]), value("shape", [2], TensorProto.INT64)]
    return model(nodes, inputs, [value("y", ["a", "b"])])


def attributes():
    """Attributes of every kind: numbers, lists, texts, a tensor, none at all."""
    constant = numpy_helper.from_array(np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2), "c")
    nodes = [
        helper.make_node("Constant", [], ["k"], value=constant),
        helper.make_node("Conv", ["x", "k"], ["a"], strides=[1, 1], pads=[0, 0, 0, 0], auto_pad="NOTSET"),
        helper.make_node("LeakyRelu", ["a"], ["b"], alpha=0.25),
        helper.make_node("Clip", ["b", "", "top"], ["y"]),
    ]
    top = numpy_helper.from_array(np.array(3, np.float32), "top")
    return model(nodes, [value("x", [1, 1, 5, 5])], [value("y", [1, 1, 4, 4])], [top])


def types():
    """Inputs and outputs of other types than floats."""
    nodes = [
        helper.make_node("Add", ["i", "i"], ["i2"]),
        helper.make_node("Not", ["b"], ["nb"]),
        helper.make_node("Cast", ["h"], ["f"], to=FLOAT),
        helper.make_node("Cast", ["u"], ["d"], to=TensorProto.DOUBLE),
    ]
    inputs = [
        value("i", ["n"], TensorProto.INT64),
        value("b", ["n"], TensorProto.BOOL),
        value("h", ["n"], TensorProto.FLOAT16),
        value("u", ["n"], TensorProto.UINT8),
    ]
    outputs = [
        value("i2", ["n"], TensorProto.INT64),
        value("nb", ["n"], TensorProto.BOOL),
        value("f", ["n"]),
        value("d", ["n"], TensorProto.DOUBLE),
    ]
    return model(nodes, inputs, outputs)


def overridable():
    """An initializer that is an input too: a caller may give another value."""
    scale = numpy_helper.from_array(np.full(1, 2, np.float32), "scale")
    nodes = [helper.make_node("Mul", ["x", "scale"], ["y"])]
    return model(nodes, [value("x", [4]), value("scale", [1])], [value("y", [4])], [scale])


def texts():
    """Inputs that are texts, which are not taken."""
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    return model(nodes, [value("x", [2], TensorProto.STRING)], [value("y", [2], TensorProto.STRING)])


MODELS = {
    "mlp": mlp(),
    "add_one": add_one(),
    "fan4": fan(4),
    "fan64": fan(64),
    "fan100": fan(100),
    "chain50": chain(50),
    "foreign_middle": foreign_middle(),
    "branches": branches(),
    "captures": captures(),
    "nested": nested(),
    "rounds": rounds(),
    "scanned": scanned(),
    "sizes_by_values": sizes_by_values(),
    "shape_input": shape_input(),
    "attributes": attributes(),
    "types": types(),
    "overridable": overridable(),
    "texts": texts(),
}

folder = sys.argv[1]
for name, proto in MODELS.items():
    if name != "foreign_middle":
        onnx.checker.check_model(proto)
    onnx.save(proto, os.path.join(folder, f"{name}.onnx"))
onnx.save(
    mlp(),
    os.path.join(folder, "mlp_external.onnx"),
    save_as_external_data=True,
    location="mlp_external.data",
    size_threshold=1024,
)
