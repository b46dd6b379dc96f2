"""Tests of the plugin execution provider on the onnxruntime of this environment.

ort_ep_test.py LIBRARY MODELS WORK

MODELS is the folder that ort_ep_models.py wrote, WORK an empty folder for what the tests write. Every test is a function
whose name begins with test_; the first line of what fails is printed, and the exit status is 1.
"""
import ctypes
import gc
import os
import sys
import threading
import traceback

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import _pybind_state

LIBRARY, MODELS, WORK = (os.path.abspath(path) for path in sys.argv[1:4])
NAME = "PrecastExecutionProvider"
REGISTRATION = "precast"
OFF = {"cache.mode": "off"}
VERSION = tuple(int(part) for part in ort.__version__.split(".")[:2])


def path(name):
    return os.path.join(MODELS, f"{name}.onnx")


def devices():
    return [device for device in ort.get_ep_devices() if device.ep_name == NAME]


def session_options(options=None, entries=None, level=None, strict_runtime=True):
    session = ort.SessionOptions()
    session.log_severity_level = 4
    if strict_runtime:
        session.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    for key, value in (entries or {}).items():
        session.add_session_config_entry(key, value)
    if level is not None:
        session.graph_optimization_level = level
    session.add_provider_for_devices(devices(), {**OFF, **(options or {})})
    return session


def open_session(model, options=None, **more):
    return ort.InferenceSession(model, sess_options=session_options(options, **more))


def cpu(model):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(model, sess_options=options, providers=["CPUExecutionProvider"])


def rows(count, seed=0):
    return {"x": np.random.default_rng(seed).standard_normal((count, 64)).astype(np.float32)}


def compare(found, expected, tolerance=1e-5):
    assert len(found) == len(expected), f"{len(found)} outputs, expected {len(expected)}"
    for index, (a, b) in enumerate(zip(found, expected)):
        assert a.dtype == b.dtype and a.shape == b.shape, f"output {index}: {a.dtype}{a.shape}, expected {b.dtype}{b.shape}"
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=f"output {index}")


def both(name, feeds, options=None, **more):
    session = open_session(path(name), options, **more)
    for feed in feeds:
        compare(session.run(None, feed), cpu(path(name)).run(None, feed))
    return session


def error_of(function):
    try:
        function()
    except Exception as error:
        return str(error)
    raise AssertionError("no error")


def resident_mb():
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


def test_the_provider_is_offered_on_the_cpu_device():
    (device,) = devices()
    assert device.ep_vendor == "Precast" and str(device.device.type).endswith("CPU"), device.device.type


def test_any_batch_runs_with_and_without_buckets():
    feeds = [rows(count, count) for count in (1, 3, 2, 7, 3)]
    both("mlp", feeds)
    both("mlp", feeds, {"buckets": "pow2:8"})
    both("mlp", feeds, {"migraphx_max_dynamic_batch": "8", "migraphx_compile_batches": "1,3"})
    axis = {"migraphx_dynamic_dimension_index": "0", "migraphx_max_dynamic_dim_size": "8"}
    both("mlp", feeds, axis)


def test_external_data_and_models_in_memory():
    both("mlp_external", [rows(2)])
    with open(path("mlp"), "rb") as file:
        data = file.read()
    compare(open_session(data).run(None, rows(3)), cpu(data).run(None, rows(3)))


def test_attributes_of_every_kind():
    both("attributes", [{"x": np.arange(25, dtype=np.float32).reshape(1, 1, 5, 5) - 12}])


def test_bodies_read_values_that_nobody_else_does():
    x, z = np.arange(4, dtype=np.float32), np.linspace(-1, 1, 4).astype(np.float32)
    both("branches", [{"x": x, "flag": np.array(flag)} for flag in (True, False, True)])
    both("captures", [{"x": x, "flag": np.array(flag)} for flag in (True, False, True)])
    flags = [(True, True), (True, False), (False, True), (False, False)]
    both("nested", [{"x": x, "z": z, "outer": np.array(outer), "inner": np.array(inner)} for outer, inner in flags])
    both("rounds", [{"x": x, "start": z, "count": np.array(count)} for count in (3, 1, 0, 5)])


def test_a_scan_whose_body_alone_reads_an_input_needs_a_newer_runtime():
    feed = {name: np.arange(4, dtype=np.float32) for name in ("x", "start")}
    feed["rows"] = np.arange(12, dtype=np.float32).reshape(3, 4)
    if VERSION >= (1, 27):
        both("scanned", [feed])
        return
    text = error_of(lambda: open_session(path("scanned"), {"strict": "1"}, strict_runtime=False))
    assert "'x' is read by bodies of Scan alone" in text and "does not hand over" in text, text
    session = open_session(path("scanned"), strict_runtime=False)
    compare(session.run(None, feed), cpu(path("scanned")).run(None, feed))


def test_branches_that_the_runtime_runs_are_not_saved_compiled():
    target = os.path.join(WORK, "branches_context.onnx")
    text = error_of(lambda: context_model("branches", target, {"strict": "1"}))
    assert "does not hand over" in text or "it cannot be saved" in text, text


def test_element_types_keep_their_layout():
    for count in (1, 5, 0):
        feed = {
            "i": np.arange(count, dtype=np.int64),
            "b": np.arange(count) % 2 == 0,
            "h": np.linspace(-2, 2, count).astype(np.float16),
            "u": np.arange(count, dtype=np.uint8),
        }
        both("types", [feed])


def test_models_that_are_no_session():
    feeds = [{"x": np.array(values, np.float32)} for values in ([0, 1, 0, 2], [0, 0], [1, 2, 3], [])]
    both("sizes_by_values", feeds)
    x = np.arange(12, dtype=np.float32)
    both("shape_input", [{"x": x, "shape": np.array(shape)} for shape in ([3, 4], [2, 6], [3, 4])])


def test_inputs_with_initializers_can_be_given():
    session = open_session(path("overridable"))
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x * 2)
    np.testing.assert_array_equal(session.run(None, {"x": x, "scale": np.full(1, 3, np.float32)})[0], x * 3)


def test_newer_runtimes_take_the_provider_by_its_name():
    if VERSION < (1, 25):
        return
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    session = ort.InferenceSession(path("mlp"), options, providers=[(NAME, dict(OFF))])
    compare(session.run(None, rows(2)), cpu(path("mlp")).run(None, rows(2)))


def test_1_a_foreign_node_in_the_middle_means_that_nothing_is_taken():
    x = {"x": (np.eye(3, dtype=np.float32) * 2).reshape(1, 3, 3)}
    report = os.path.join(WORK, "report.txt")
    session = open_session(path("foreign_middle"), {"report": report}, strict_runtime=False)
    compare(session.run(None, x), cpu(path("foreign_middle")).run(None, x))
    with open(report, encoding="utf-8") as file:
        text = file.read()
    assert "1 of 3 nodes cannot be imported" in text and "MurmurHash3" in text, text
    text = error_of(lambda: open_session(path("foreign_middle"), {"strict": "1"}, strict_runtime=False))
    assert "1 of 3 nodes cannot be imported" in text and "MurmurHash3" in text, text
    text = error_of(lambda: open_session(path("texts"), {"strict": "1"}, strict_runtime=False))
    assert "tensor of strings" in text, text


def test_2_outputs_are_the_same_at_every_level_of_optimisation():
    expected = cpu(path("mlp")).run(None, rows(4))
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_ALL"):
        session = open_session(path("mlp"), level=getattr(ort.GraphOptimizationLevel, level))
        compare(session.run(None, rows(4)), expected)


def test_2_programs_are_the_same_at_every_level_of_optimisation():
    options = {"cache.dir": os.path.join(WORK, "levels"), "dims.batch": "3"}
    open_session(path("mlp"), {**options, "cache.mode": "rw"}).run(None, rows(3))
    only = {**options, "cache.mode": "lookup-only"}
    session = open_session(path("mlp"), only, level=ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
    compare(session.run(None, rows(3)), cpu(path("mlp")).run(None, rows(3)))


def test_3_bad_options_reach_the_user_all_at_once():
    options = {"devise": "cpu", "threads": "none", "migraphx_fp16_enable": "1", "migraphx_bf16_enable": "1"}
    text = error_of(lambda: open_session(path("mlp"), options, strict_runtime=False))
    for part in ("Did you mean 'device'?", "'threads=none'", "contradict each other"):
        assert part in text, text
    text = error_of(lambda: open_session(path("mlp"), {"device": "hip:9"}, strict_runtime=False))
    assert "hip" in text.lower(), text


def test_3_variables_of_the_older_provider_count_when_asked_for():
    os.environ["ORT_MIGRAPHX_MAX_DYNAMIC_BATCH"] = "many"
    try:
        both("mlp", [rows(2)])
        text = error_of(lambda: open_session(path("mlp"), {"compat.env": "true"}))
        assert "MAX_DYNAMIC_BATCH=many" in text, text
    finally:
        del os.environ["ORT_MIGRAPHX_MAX_DYNAMIC_BATCH"]


def test_4_names_are_bound_whatever_their_order():
    feed = {f"x{i}": np.full(4, i, np.float32) for i in range(64)}
    feed["shared"] = np.arange(4, dtype=np.float32)
    both("fan64", [feed])


def test_5_a_second_runtime_in_the_process_registers_the_library_too():
    folder = os.path.join(os.path.dirname(ort.__file__), "capi")
    names = [name for name in os.listdir(folder) if name.startswith("libonnxruntime.so")]
    if not names:
        return
    runtime = ctypes.CDLL(os.path.join(folder, names[0]))
    runtime.OrtGetApiBase.restype = ctypes.POINTER(ctypes.c_void_p * 2)
    base = runtime.OrtGetApiBase().contents
    api = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(base[0])(24)
    slots = ctypes.cast(api, ctypes.POINTER(ctypes.c_void_p))
    pointer = ctypes.c_void_p
    create_env = ctypes.CFUNCTYPE(pointer, ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(pointer))(slots[3])
    register = ctypes.CFUNCTYPE(pointer, pointer, ctypes.c_char_p, ctypes.c_char_p)(slots[301])
    unregister = ctypes.CFUNCTYPE(pointer, pointer, ctypes.c_char_p)(slots[302])
    release_env = ctypes.CFUNCTYPE(None, pointer)(slots[92])
    env = pointer()
    assert not create_env(4, b"second", ctypes.byref(env))
    assert not register(env, b"second", LIBRARY.encode())
    both("mlp", [rows(2)])
    assert not unregister(env, b"second")
    release_env(env)
    both("mlp", [rows(2)])


def test_6_a_session_outlives_the_registration():
    session = open_session(path("mlp"))
    expected = session.run(None, rows(2))
    ort.unregister_execution_provider_library(REGISTRATION)
    try:
        compare(session.run(None, rows(2)), expected, 0)
    except RuntimeError:
        pass
    finally:
        del session
        gc.collect()
        ort.register_execution_provider_library(REGISTRATION, LIBRARY)
    both("mlp", [rows(2)])


def test_8_opening_many_times_takes_no_more_memory():
    def open_all():
        for name in ("attributes", "captures", "nested", "rounds", "types"):
            open_session(path(name))

    for _ in range(10):
        open_all()
    before = resident_mb()
    for _ in range(40):
        open_all()
    grown = resident_mb() - before
    assert grown < 12, f"{grown:.1f} MiB more after 200 sessions"


def test_9_the_package_names_its_library_and_it_may_be_loaded_twice():
    import onnxruntime_ep_precast as package

    assert os.path.samefile(package.get_library_path(), LIBRARY) and os.path.isabs(package.get_library_path())
    options = ort.SessionOptions()
    package.append(options, {"cache.mode": "off", "threads": 1})
    session = ort.InferenceSession(path("mlp"), sess_options=options)
    assert session.get_providers()[0] == package.get_ep_name() == NAME
    first, second = ctypes.CDLL(LIBRARY), ctypes.CDLL(LIBRARY)
    assert first._handle == second._handle
    both("mlp", [rows(2)])


def context_model(name, target, options, entries=None):
    if os.path.exists(target):
        os.remove(target)
    entries = {"ep.context_enable": "1", "ep.context_file_path": target, **(entries or {})}
    open_session(path(name), options, entries=entries)
    assert os.path.exists(target), "no model was written"


def test_10_compiled_models_come_back_embedded_and_beside():
    for embed in ("1", "0"):
        folder = os.path.join(WORK, f"context{embed}")
        os.makedirs(folder)
        target = os.path.join(folder, "mlp_context.onnx")
        context_model("mlp", target, {"buckets": "1,4"}, {"ep.context_embed_mode": embed})
        others = [name for name in os.listdir(folder) if name.endswith(".precast")]
        assert len(others) == (0 if embed == "1" else 1), others
        session = open_session(target)
        for count in (1, 2, 4, 9):
            compare(session.run(None, rows(count)), cpu(path("mlp")).run(None, rows(count)))
        compiled_for = session.get_modelmeta().custom_metadata_map[f"ep_compatibility_info.{NAME}"]
        assert " by precast " in compiled_for, compiled_for
        fit = _pybind_state.get_model_compatibility_for_ep_devices(devices(), compiled_for)
        assert str(fit).endswith("EP_SUPPORTED_OPTIMAL"), fit
        other = _pybind_state.get_model_compatibility_for_ep_devices(devices(), compiled_for + "0")
        assert str(other).endswith("EP_UNSUPPORTED"), other
        if embed == "0":
            os.chmod(os.path.join(folder, others[0]), 0o666)
            text = error_of(lambda: open_session(target, strict_runtime=False))
            assert "may be written by others" in text, text
            os.chmod(os.path.join(folder, others[0]), 0o600)
            with open(os.path.join(folder, others[0]), "r+b") as file:
                file.seek(4000)
                file.write(b"\xff\xff\xff\xff")
            text = error_of(lambda: open_session(target, strict_runtime=False))
            assert "damaged" in text, text


def test_10_dims_without_buckets_cannot_be_saved_and_it_is_said_how_they_can():
    target = os.path.join(WORK, "exact_context.onnx")
    text = error_of(lambda: context_model("mlp", target, {}))
    assert "these dims have no number and no Buckets: batch" in text, text


def test_10_the_runtime_compiles_models_by_itself():
    if not hasattr(ort, "ModelCompiler"):
        return
    target = os.path.join(WORK, "compiler_context.onnx")
    options = session_options({"dims.batch": "3"})
    ort.ModelCompiler(options, path("mlp"), embed_compiled_data_into_model=True).compile_to_file(target)
    compare(open_session(target).run(None, rows(3)), cpu(path("mlp")).run(None, rows(3)))


def test_11_the_library_needs_no_newer_system_than_this_one():
    newest = (0, 0)
    with open(LIBRARY, "rb") as file:
        for part in file.read().split(b"GLIBC_")[1:]:
            digits = part.split(b"\0")[0].split(b".")
            if len(digits) >= 2 and all(digit.isdigit() for digit in digits):
                newest = max(newest, tuple(int(digit) for digit in digits[:2]))
    system = tuple(int(part) for part in os.confstr("CS_GNU_LIBC_VERSION").split()[1].split("."))
    print(f"    newest symbol of the system's library: GLIBC_{newest[0]}.{newest[1]}, of {system[0]}.{system[1]}")
    assert (2, 0) <= newest <= system, newest


def test_13_registering_many_times_leaves_nothing():
    ort.unregister_execution_provider_library(REGISTRATION)
    before = resident_mb()
    for _ in range(50):
        ort.register_execution_provider_library(REGISTRATION, LIBRARY)
        assert len(devices()) == 1
        ort.unregister_execution_provider_library(REGISTRATION)
        assert not devices()
    grown = resident_mb() - before
    ort.register_execution_provider_library(REGISTRATION, LIBRARY)
    assert grown < 4, f"{grown:.1f} MiB more after 50 registrations"
    both("mlp", [rows(2)])


def test_13_runs_of_many_threads_on_two_sessions_are_equal():
    sessions = [open_session(path("mlp"), {"buckets": "pow2:8"}) for _ in range(2)]
    expected = {count: cpu(path("mlp")).run(None, rows(count, count)) for count in range(1, 9)}
    failures = []

    def work(thread):
        try:
            for turn in range(100):
                count = (thread * 3 + turn) % 8 + 1
                compare(sessions[turn % 2].run(None, rows(count, count)), expected[count])
        except Exception as error:
            failures.append(str(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_outputs_may_be_bound_and_inputs_overwritten():
    session = open_session(path("chain50"))
    x = np.arange(16, dtype=np.float32)
    y = np.zeros(16, np.float32)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y", "cpu", 0, np.float32, [16], y.ctypes.data)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(y, x + 50)
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, [16], y.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, [16], y.ctypes.data)
    for _ in range(3):
        session.run_with_iobinding(binding)
    np.testing.assert_array_equal(y, x + 200)


def test_buffers_may_lie_anywhere():
    session = open_session(path("chain50"))
    memory = np.zeros(129, np.uint8)
    x = np.arange(16, dtype=np.float32)
    memory[1:65] = x.view(np.uint8)
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, [16], memory.ctypes.data + 1)
    binding.bind_output("y", "cpu", 0, np.float32, [16], memory.ctypes.data + 65)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(memory[65:129].copy().view(np.float32), x + 50)


def test_programs_are_found_in_the_cache_by_another_session():
    folder = os.path.join(WORK, "cache")
    options = {"cache.dir": folder, "cache.mode": "rw", "buckets": "1,4"}
    expected = both("mlp", [rows(3)], options).run(None, rows(3))
    only = {"cache.dir": folder, "cache.mode": "lookup-only", "buckets": "1,4"}
    compare(open_session(path("mlp"), only).run(None, rows(3)), expected, 0)
    external = open_session(path("mlp_external"), only)
    compare(external.run(None, rows(3)), expected, 0)


def test_the_assignment_says_that_the_provider_has_it_all():
    session = open_session(path("mlp"), entries={"session.record_ep_graph_assignment_info": "1"})
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return
    assigned = session.get_provider_graph_assignment_info()
    names = {subgraph.ep_name for subgraph in assigned}
    assert names == {NAME}, names
    assert sum(len(subgraph.get_nodes()) for subgraph in assigned) >= 3


def main():
    ort.register_execution_provider_library(REGISTRATION, LIBRARY)
    failed = 0
    tests = [(name, test) for name, test in globals().items() if name.startswith("test_")]
    for name, test in tests:
        try:
            test()
        except Exception:
            failed += 1
            print(f"FAILED {name}")
            traceback.print_exc()
    print(f"onnxruntime {ort.__version__}: {len(tests) - failed} of {len(tests)} tests passed")
    gc.collect()
    return 1 if failed else 0


sys.exit(main())
