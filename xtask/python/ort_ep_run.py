"""Run a model on the plugin provider alone.

ort_ep_run.py LIBRARY CACHE MODEL FOLDER...

A FOLDER holds names.json with the names of the inputs, and input_0.npy, input_1.npy, ... in that order. The outputs are
written as plugin_0.npy, ... in the order that the model declares them. Programs are kept in the folder CACHE.
"""
import json
import os
import sys

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy as np
import onnxruntime as ort

LIBRARY, CACHE, MODEL = sys.argv[1:4]
NAME = "PrecastExecutionProvider"


def read_inputs(folder):
    with open(os.path.join(folder, "names.json"), encoding="utf-8") as file:
        names = json.load(file)
    return {name: np.load(os.path.join(folder, f"input_{i}.npy")) for i, name in enumerate(names)}


def main():
    ort.register_execution_provider_library("precast", LIBRARY)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    devices = [device for device in ort.get_ep_devices() if device.ep_name == NAME]
    options.add_provider_for_devices(devices, {"strict": "1", "cache.dir": CACHE})
    session = ort.InferenceSession(MODEL, sess_options=options)
    for folder in sys.argv[4:]:
        for i, output in enumerate(session.run(None, read_inputs(folder))):
            np.save(os.path.join(folder, f"plugin_{i}.npy"), np.asarray(output, order="C"))


main()
