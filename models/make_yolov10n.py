#!/usr/bin/env python3
"""Write yolov10n.onnx, the graph of YOLOv10-N without weights: make_yolov10n.py OUT_FILE

The architecture is that of "YOLOv10: Real-Time End-to-End Object Detection" (Wang et al., arXiv 2405.14458) at its
smallest size: width 0.25, depth 0.33, 80 classes, 640 x 640 pixels, any batch. The graph is the one for inference: batch
norms are part of the convolutions, a 7 x 7 depthwise convolution and the 3 x 3 one beside it are one, and of the two
heads only the one-to-one head is there, whose best 300 boxes need no suppression. Every weight is an initializer
without data whose doc string says how xtask/src/fill.rs makes its values. Needs onnx and numpy.
"""
import argparse

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CLASSES = 80
IMAGE = 640
BINS = 16  # a side of a box is the mean of a distribution over so many distances
DETECTIONS = 300
WIDTH_OF_HEAD = 64
HEAD_DIM = 64  # channels of a value in attention; keys and queries have half
OPSET = 17
# The mean square of SiLU of a standard normal variable: filters are scaled such that every layer has unit scale again.
SILU_POWER = 0.3557
# The same of its largest value among 5 x 5, 9 x 9 and 13 x 13.
POOLED_POWERS = [3.3, 5.2, 6.4]
BIAS_STD = 0.02
# Most places hold nothing: scores near 1 would be equal to the last bit, and have no order.
LOGIT_STD, LOGIT_MEAN = 0.5, -4.0


class Network:
    """A graph under construction. Values are known by name, with the channels that they have."""

    def __init__(self):
        self.nodes, self.initializers = [], []
        self.channels = {"images": 3}
        # Mean square of a value's elements.
        self.power = {"images": 1.0}

    def node(self, op, name, inputs, outputs=1, **attributes):
        """Adds a node; its one output, or a list of them, is named after it."""
        names = [name] if outputs == 1 else [f"{name}.{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, name=name, **attributes))
        return names[0] if outputs == 1 else names

    def like(self, name, source, channels=None):
        """Says that a value has the channels and the scale of another."""
        self.channels[name] = channels or self.channels[source]
        self.power[name] = self.power[source]
        return name

    def constant(self, name, array):
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def integers(self, name, *values):
        return self.constant(name, np.array(values, np.int64))

    def weight(self, name, dims, std, mean=0.0):
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims, doc_string=f"normal {mean:g} {std:.6g}")
        self.initializers.append(tensor)
        return name

    def conv(self, name, x, channels, kernel=1, stride=1, groups=1, active=True, std=1.0, mean=0.0):
        """A convolution with bias that divides the size by the stride, and SiLU unless it is not active."""
        own_channels = self.channels[x] // groups
        weight_std = std * (self.power[x] * own_channels * kernel * kernel) ** -0.5
        weight = self.weight(f"{name}.weight", [channels, own_channels, kernel, kernel], weight_std)
        bias = self.weight(f"{name}.bias", [channels], BIAS_STD, mean)
        out = self.node("Conv", name, [x, weight, bias], kernel_shape=[kernel] * 2, strides=[stride] * 2, group=groups,
                        pads=[kernel // 2] * 4)
        self.channels[out], self.power[out] = channels, std * std + mean * mean
        return self.silu(out) if active else out

    def depthwise(self, name, x, kernel=3, stride=1, active=True):
        return self.conv(name, x, self.channels[x], kernel, stride, groups=self.channels[x], active=active)

    def silu(self, x):
        gate = self.node("Sigmoid", f"{x}.sigmoid", [x])
        out = self.node("Mul", f"{x}.silu", [x, gate])
        self.channels[out], self.power[out] = self.channels[x], SILU_POWER
        return out

    def concat(self, name, parts):
        out = self.node("Concat", name, parts, axis=1)
        self.channels[out] = sum(self.channels[part] for part in parts)
        self.power[out] = sum(self.channels[part] * self.power[part] for part in parts) / self.channels[out]
        return out

    def add(self, name, a, b):
        out = self.node("Add", name, [a, b])
        self.channels[out], self.power[out] = self.channels[a], self.power[a] + self.power[b]
        return out

    def halves(self, name, x):
        half = self.channels[x] // 2
        parts = self.node("Split", name, [x, self.integers(f"{name}.sizes", half, half)], outputs=2, axis=1)
        return [self.like(part, x, half) for part in parts]

    def upsample(self, name, x):
        scales = self.constant(f"{name}.scales", np.array([1, 1, 2, 2], np.float32))
        out = self.node("Resize", name, [x, "", scales], mode="nearest", nearest_mode="floor",
                        coordinate_transformation_mode="asymmetric")
        return self.like(out, x)

    def reshape(self, name, x, *shape):
        return self.node("Reshape", name, [x, self.integers(f"{name}.shape", *shape)])


def bottleneck(net, name, x, residual):
    y = net.conv(f"{name}.first", x, net.channels[x], 3)
    y = net.conv(f"{name}.second", y, net.channels[x], 3)
    return net.add(f"{name}.sum", x, y) if residual else y


def compact_inverted_block(net, name, x):
    """Depthwise convolutions between 1 x 1 ones, the middle one with the large kernel (section 3.2 of the paper)."""
    channels = net.channels[x]
    y = net.depthwise(f"{name}.first", x)
    y = net.conv(f"{name}.expand", y, 2 * channels)
    y = net.depthwise(f"{name}.large", y, kernel=7)
    y = net.conv(f"{name}.reduce", y, channels)
    y = net.depthwise(f"{name}.last", y)
    return net.add(f"{name}.sum", x, y)


def two_branches(net, name, x, channels, blocks):
    """C2f: one half passes by, the other runs through the blocks, and the result of each is kept."""
    parts = net.halves(f"{name}.split", net.conv(f"{name}.enter", x, channels))
    for index, block in enumerate(blocks):
        parts.append(block(net, f"{name}.block{index}", parts[-1]))
    return net.conv(f"{name}.leave", net.concat(f"{name}.concat", parts), channels)


def residual_bottlenecks(count):
    return [lambda net, name, x: bottleneck(net, name, x, residual=True)] * count


PLAIN_BOTTLENECK = [lambda net, name, x: bottleneck(net, name, x, residual=False)]


def decoupled_downsample(net, name, x, channels):
    """SCDown: channels by a 1 x 1 convolution first, then size by a depthwise one that has no activation."""
    return net.depthwise(f"{name}.size", net.conv(f"{name}.channels", x, channels), stride=2, active=False)


def pyramid_pool(net, name, x):
    channels = net.channels[x]
    parts = [net.conv(f"{name}.enter", x, channels // 2)]
    for index, power in enumerate(POOLED_POWERS):
        pooled = net.node("MaxPool", f"{name}.pool{index}", [parts[-1]], kernel_shape=[5, 5], strides=[1, 1], pads=[2] * 4)
        parts.append(pooled)
        net.channels[pooled], net.power[pooled] = channels // 2, power
    return net.conv(f"{name}.leave", net.concat(f"{name}.concat", parts), channels)


def attention(net, name, x):
    """Attention over all places; the values' own places come in by a depthwise convolution."""
    channels = net.channels[x]
    heads, key_dim = channels // HEAD_DIM, HEAD_DIM // 2
    side = IMAGE // 32
    qkv = net.conv(f"{name}.qkv", x, channels + 2 * heads * key_dim, active=False)
    qkv = net.reshape(f"{name}.heads", qkv, 0, heads, 2 * key_dim + HEAD_DIM, side * side)
    sizes = net.integers(f"{name}.sizes", key_dim, key_dim, HEAD_DIM)
    query, key, value = net.node("Split", f"{name}.split", [qkv, sizes], outputs=3, axis=2)
    query = net.node("Transpose", f"{name}.query", [query], perm=[0, 1, 3, 2])
    scale = net.constant(f"{name}.scale", np.array(key_dim ** -0.5, np.float32))
    scores = net.node("Mul", f"{name}.scaled", [net.node("MatMul", f"{name}.scores", [query, key]), scale])
    weights = net.node("Softmax", f"{name}.softmax", [scores], axis=-1)
    weights = net.node("Transpose", f"{name}.weights", [weights], perm=[0, 1, 3, 2])
    mixed = net.node("MatMul", f"{name}.mixed", [value, weights])
    mixed = net.reshape(f"{name}.joined", mixed, 0, channels, side, side)
    own = net.reshape(f"{name}.values", value, 0, channels, side, side)
    for part in (own, mixed):
        net.channels[part], net.power[part] = channels, 1.0
    total = net.add(f"{name}.total", mixed, net.depthwise(f"{name}.position", own, active=False))
    return net.conv(f"{name}.project", total, channels, active=False)


def partial_attention(net, name, x):
    """PSA: attention and a feed-forward part on one half of the channels."""
    channels = net.channels[x]
    aside, y = net.halves(f"{name}.split", net.conv(f"{name}.enter", x, channels))
    y = net.add(f"{name}.attended", y, attention(net, f"{name}.attention", y))
    wide = net.conv(f"{name}.expand", y, channels)
    y = net.add(f"{name}.fed", y, net.conv(f"{name}.reduce", wide, channels // 2, active=False))
    return net.conv(f"{name}.leave", net.concat(f"{name}.concat", [aside, y]), channels)


def backbone(net):
    x = net.conv("stem0", "images", 16, 3, stride=2)
    x = net.conv("stem1", x, 32, 3, stride=2)
    x = two_branches(net, "stage1", x, 32, residual_bottlenecks(1))
    x = net.conv("down2", x, 64, 3, stride=2)
    fine = two_branches(net, "stage2", x, 64, residual_bottlenecks(2))
    x = decoupled_downsample(net, "down3", fine, 128)
    middle = two_branches(net, "stage3", x, 128, residual_bottlenecks(2))
    x = decoupled_downsample(net, "down4", middle, 256)
    x = two_branches(net, "stage4", x, 256, residual_bottlenecks(1))
    coarse = partial_attention(net, "attention", pyramid_pool(net, "pyramid", x))
    return fine, middle, coarse


def neck(net, fine, middle, coarse):
    """The path aggregation network: from coarse to fine and back."""
    x = net.concat("up1.concat", [net.upsample("up1", coarse), middle])
    middle = two_branches(net, "up1.merge", x, 128, PLAIN_BOTTLENECK)
    x = net.concat("up2.concat", [net.upsample("up2", middle), fine])
    fine = two_branches(net, "up2.merge", x, 64, PLAIN_BOTTLENECK)
    x = net.concat("back1.concat", [net.conv("back1", fine, 64, 3, stride=2), middle])
    middle = two_branches(net, "back1.merge", x, 128, PLAIN_BOTTLENECK)
    x = net.concat("back2.concat", [decoupled_downsample(net, "back2", middle, 128), coarse])
    coarse = two_branches(net, "back2.merge", x, 256, [compact_inverted_block])
    return fine, middle, coarse


def distances(net, name, x):
    """Distributions of the four sides of a box at every place."""
    x = net.conv(f"{name}.first", x, WIDTH_OF_HEAD, 3)
    x = net.conv(f"{name}.second", x, WIDTH_OF_HEAD, 3)
    return net.conv(f"{name}.bins", x, 4 * BINS, active=False)


def class_logits(net, name, x, width):
    x = net.conv(f"{name}.mix1", net.depthwise(f"{name}.see1", x), width)
    x = net.conv(f"{name}.mix2", net.depthwise(f"{name}.see2", x), width)
    return net.conv(f"{name}.logits", x, CLASSES, active=False, std=LOGIT_STD, mean=LOGIT_MEAN)


def head(net, maps):
    width = max(net.channels[maps[0]], min(CLASSES, 100))
    sides, logits = [], []
    for index, x in enumerate(maps):
        bins = distances(net, f"box{index}", x)
        sides.append(net.reshape(f"box{index}.places", bins, 0, 4 * BINS, -1))
        classes = class_logits(net, f"class{index}", x, width)
        logits.append(net.reshape(f"class{index}.places", classes, 0, CLASSES, -1))
    scores = net.node("Sigmoid", "scores", [net.node("Concat", "logits", logits, axis=2)])
    return decode_boxes(net, net.node("Concat", "bins", sides, axis=2)), scores


def anchors():
    """Centres of all places in units of their stride [1, 2, places], and the strides [1, 1, places]."""
    centres, strides = [], []
    for stride in (8, 16, 32):
        axis = np.arange(IMAGE // stride, dtype=np.float32) + 0.5
        y, x = np.meshgrid(axis, axis, indexing="ij")
        centres.append(np.stack([x.ravel(), y.ravel()]))
        strides.append(np.full(x.size, stride, np.float32))
    return np.concatenate(centres, 1)[None], np.concatenate(strides)[None, None]


def decode_boxes(net, bins):
    """Corners of the boxes in pixels [batch, 4, places]: the mean of each distribution, away from the place's centre."""
    centres, strides = anchors()
    bins = net.reshape("bins.sides", bins, 0, 4, BINS, centres.shape[2])
    bins = net.node("Transpose", "bins.first", [bins], perm=[0, 2, 1, 3])
    bins = net.node("Softmax", "bins.softmax", [bins], axis=1)
    means = net.constant("bins.distance", np.arange(BINS, dtype=np.float32).reshape(1, BINS, 1, 1))
    sides = net.node("Conv", "bins.mean", [bins, means], kernel_shape=[1, 1])
    sides = net.reshape("sides", sides, 0, 4, centres.shape[2])
    low, high = net.node("Split", "sides.split", [sides, net.integers("sides.sizes", 2, 2)], outputs=2, axis=1)
    centre = net.constant("centres", centres)
    corners = [net.node("Sub", "corner.low", [centre, low]), net.node("Add", "corner.high", [centre, high])]
    corners = net.node("Concat", "corners", corners, axis=1)
    return net.node("Mul", "boxes", [corners, net.constant("strides", strides)])


def best_detections(net, boxes, scores):
    """The best places by their best class, then the best pairs of place and class among those."""
    boxes = net.node("Transpose", "boxes.places", [boxes], perm=[0, 2, 1])
    scores = net.node("Transpose", "scores.places", [scores], perm=[0, 2, 1])
    count, last = net.integers("detections", DETECTIONS), net.integers("last_axis", 2)
    best = net.node("ReduceMax", "scores.best", [scores], axes=[2], keepdims=0)
    _, places = net.node("TopK", "places", [best, count], outputs=2, axis=1)
    places = net.node("Unsqueeze", "places.index", [places, last])
    boxes = net.node("GatherND", "boxes.kept", [boxes, places], batch_dims=1)
    scores = net.node("GatherND", "scores.kept", [scores, places], batch_dims=1)
    pairs = net.reshape("pairs.flat", scores, 0, DETECTIONS * CLASSES)
    confidence, pairs = net.node("TopK", "pairs", [pairs, count], outputs=2, axis=1)
    classes = net.integers("classes", CLASSES)
    label = net.node("Cast", "label", [net.node("Mod", "label.index", [pairs, classes])], to=TensorProto.FLOAT)
    row = net.node("Unsqueeze", "row.index", [net.node("Div", "row", [pairs, classes]), last])
    boxes = net.node("GatherND", "boxes.best", [boxes, row], batch_dims=1)
    confidence = net.node("Unsqueeze", "confidence", [confidence, last])
    label = net.node("Unsqueeze", "label.column", [label, last])
    return net.node("Concat", "output0", [boxes, confidence, label], axis=2)


def make_model():
    net = Network()
    boxes, scores = head(net, neck(net, *backbone(net)))
    best_detections(net, boxes, scores)
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, IMAGE, IMAGE])
    output = helper.make_tensor_value_info("output0", TensorProto.FLOAT, ["batch", DETECTIONS, 6])
    graph = helper.make_graph(net.nodes, "yolov10n", [images], [output], net.initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8, producer_name="precast")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out_file")
    with open(parser.parse_args().out_file, "wb") as file:
        file.write(make_model().SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
