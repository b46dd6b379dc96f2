"""Write small pipelines of scikit-learn as ONNX files, each with inputs and what onnxruntime makes of them.

make_ml_models.py FOLDER; needs scikit-learn, skl2onnx and onnxruntime. The files are checked in (crates/precast/tests/ml),
so that tests need none of these.
"""
import json
import os
import sys

import numpy
import onnxruntime
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import (
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, SGDClassifier
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
)
from sklearn.svm import SVC, SVR, LinearSVC, OneClassSVM
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor


def listed(value):
    """A value of onnxruntime as JSON: shape and elements, rows of a map as their values."""
    if isinstance(value, list):
        value = numpy.array([[row[key] for key in sorted(row)] for row in value], dtype=numpy.float32)
    kind = "string" if value.dtype.kind in "OU" else value.dtype.name
    # JSON has no NaN.
    elements = [None if element != element else element for element in value.reshape(-1).tolist()]
    return {"type": kind, "shape": list(value.shape), "elements": elements}


def write(folder, name, model, inputs, types, **options):
    proto = to_onnx(model, initial_types=types, target_opset={"": 18, "ai.onnx.ml": 3}, **options)
    for note in list(proto.metadata_props):
        proto.metadata_props.remove(note)
    path = os.path.join(folder, f"{name}.onnx")
    with open(path, "wb") as file:
        file.write(proto.SerializeToString())
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    outputs = session.run(None, inputs)
    names = [output.name for output in session.get_outputs()]
    golden = {
        "inputs": [dict(listed(value), name=key) for key, value in inputs.items()],
        "outputs": [dict(listed(value), name=key) for key, value in zip(names, outputs)],
    }
    with open(os.path.join(folder, f"{name}.json"), "w") as file:
        json.dump(golden, file)
        file.write("\n")
    print(name, os.path.getsize(path), sorted({node.op_type for node in proto.graph.node}))


def numeric(folder):
    random = numpy.random.RandomState(7)
    x = random.randn(60, 4).astype(numpy.float32)
    y = x @ numpy.array([1.0, -2.0, 0.5, 0.25]) + 0.1 * random.randn(60)
    two = (y > 0).astype(int)
    three = numpy.digitize(y, [-1, 1])
    names = numpy.array(["low", "middle", "high"])[three]
    x_test = random.randn(7, 4).astype(numpy.float32)
    types = [("X", FloatTensorType([None, 4]))]

    def put(name, model, target, **options):
        write(folder, name, model.fit(x, target), {"X": x_test}, types, **options)

    plain = {"options": {"zipmap": False}}
    put("linear_regression", make_pipeline(StandardScaler(), LinearRegression()), y)
    put("two_targets", LinearRegression(), numpy.stack([y, -y], 1))
    put("logistic_two", LogisticRegression(), two)
    put("logistic_names", make_pipeline(MinMaxScaler(), LogisticRegression()), names, **plain)
    put("stochastic_descent", SGDClassifier(loss="log_loss", random_state=0), three, **plain)
    put("linear_svc", LinearSVC(random_state=0), two)
    put("tree_regressor", DecisionTreeRegressor(max_depth=5, random_state=0), y)
    put("tree_classifier", DecisionTreeClassifier(max_depth=4, random_state=0), three, **plain)
    put("forest_two", RandomForestClassifier(5, max_depth=4, random_state=0), two, **plain)
    put("forest_names", RandomForestClassifier(5, max_depth=4, random_state=0), names)
    put("forest_regressor", RandomForestRegressor(4, max_depth=4, random_state=0), y)
    put("extra_trees", ExtraTreesRegressor(3, max_depth=3, random_state=0), y)
    put("boosting_two", GradientBoostingClassifier(n_estimators=6, max_depth=2, random_state=0), two, **plain)
    put("boosting_three", GradientBoostingClassifier(n_estimators=4, max_depth=2, random_state=0), three, **plain)
    put("boosting_regressor", GradientBoostingRegressor(n_estimators=6, max_depth=2, random_state=0), y)
    put("several_regressors", MultiOutputRegressor(DecisionTreeRegressor(max_depth=2)), numpy.stack([y, -y], 1))
    for kernel in ["linear", "rbf", "poly", "sigmoid"]:
        put(f"svr_{kernel}", SVR(kernel=kernel), y)
    for kernel in ["linear", "rbf", "poly", "sigmoid"]:
        put(f"svc_{kernel}", SVC(kernel=kernel), three, **plain)
    put("svc_two", SVC(), two, **plain)
    put("svc_names", SVC(), names, **plain)
    put("svc_two_probabilities", SVC(probability=True, random_state=0), two, **plain)
    put("svc_probabilities", SVC(probability=True, random_state=0), names, **plain)
    put("one_class", OneClassSVM(), None)
    for norm in ["max", "l1", "l2"]:
        put(f"normalizer_{norm}", Normalizer(norm), None)
    put("binarizer", Binarizer(threshold=0.25), None)
    put("max_abs", MaxAbsScaler(), None)
    holes, holes_test = x.copy(), x_test.copy()
    holes[::3, 1] = numpy.nan
    holes_test[::2, 1:3] = numpy.nan
    write(folder, "imputer", SimpleImputer().fit(holes), {"X": holes_test}, types)


def categorical(folder):
    colours = numpy.array([["red", "small"], ["blue", "large"], ["green", "small"], ["red", "large"]])
    test = numpy.array([["blue", "small"], ["violet", "large"], ["red", "small"]])
    types = [("X", StringTensorType([None, 2]))]
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(colours)
    write(folder, "one_hot_names", encoder, {"X": test}, types)
    ordinal = OrdinalEncoder().fit(colours)
    write(folder, "ordinal_names", ordinal, {"X": colours[:3]}, types)
    numbers = numpy.array([[1, 10], [2, 20], [3, 10]], dtype=numpy.int64)
    types = [("X", Int64TensorType([None, 2]))]
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(numbers)
    write(folder, "one_hot_numbers", encoder, {"X": numpy.array([[3, 20], [9, 10]], dtype=numpy.int64)}, types)


def mixed(folder):
    import pandas

    random = numpy.random.RandomState(3)
    frame = pandas.DataFrame(
        {
            "age": random.rand(40).astype(numpy.float32) * 80,
            "fare": random.rand(40).astype(numpy.float32) * 100,
            "port": random.choice(["S", "C", "Q"], 40),
        }
    )
    frame.loc[::5, "age"] = numpy.nan
    target = numpy.where(frame["fare"] + numpy.where(frame["port"] == "C", 40, 0) > 60, "yes", "no")
    columns = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), ["age", "fare"]),
            ("names", OneHotEncoder(handle_unknown="ignore"), ["port"]),
        ]
    )
    model = make_pipeline(columns, RandomForestClassifier(4, max_depth=4, random_state=0)).fit(frame, target)
    types = [
        ("age", FloatTensorType([None, 1])),
        ("fare", FloatTensorType([None, 1])),
        ("port", StringTensorType([None, 1])),
    ]
    inputs = {name: frame[[name]].to_numpy()[:6] for name in frame}
    inputs = {key: value if value.dtype == numpy.float32 else value.astype(str) for key, value in inputs.items()}
    write(folder, "passengers", model, inputs, types)


def main():
    (folder,) = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    numeric(folder)
    categorical(folder)
    mixed(folder)


if __name__ == "__main__":
    main()
