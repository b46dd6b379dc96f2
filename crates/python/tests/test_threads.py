"""The interpreter's lock, many threads on one session, and Ctrl-C."""

import signal
import subprocess
import sys
import textwrap
import threading

import numpy
import onnx
import precast
from onnx import TensorProto, helper

from conftest import save


def test_many_threads_on_one_session_get_their_own_answers(linear):
    session = precast.InferenceSession(linear, max_batch=8, startup="all")
    reference = precast.InferenceSession(linear)
    faults = []

    def work(number):
        generator = numpy.random.default_rng(number)
        for turn in range(50):
            x = generator.standard_normal((1 + (number + turn) % 8, 4), dtype=numpy.float32)
            (y,) = session.run(None, {"x": x})
            (expected,) = reference.run(None, {"x": x})
            if not numpy.allclose(y, expected, rtol=1e-5):
                faults.append((number, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []


def test_other_threads_run_while_a_model_does(models):
    """A thread that counts goes on while another is inside one run: the lock is not held."""
    size = 1024
    weights = onnx.numpy_helper.from_array(numpy.ones((size, size), numpy.float32) / size, "w")
    names = ["x", *[f"h{layer}" for layer in range(24)]]
    nodes = [helper.make_node("MatMul", [one, "w"], [other]) for one, other in zip(names, names[1:])]
    float32, dims = TensorProto.FLOAT, [size, size]
    path = save(models, "heavy", nodes, [("x", float32, dims)], [(names[-1], float32, dims)], [weights])
    session = precast.InferenceSession(path, threads=1)
    x = numpy.ones((size, size), numpy.float32)
    session.run(None, {"x": x})
    inside, count, counted_inside = threading.Event(), 0, 0

    def run():
        inside.set()
        session.run(None, {"x": x})
        inside.clear()

    thread = threading.Thread(target=run)
    thread.start()
    inside.wait()
    while thread.is_alive():
        count += 1
        if inside.is_set():
            counted_inside += 1
    thread.join()
    # With the lock held the loop would turn a few times before and after the run, not during it.
    assert counted_inside > 1000, (count, counted_inside)


def test_ctrl_c_ends_a_compile(readme_model):
    """A process that compiles a model gets SIGINT and ends with KeyboardInterrupt."""
    script = textwrap.dedent(
        """
        import os, signal, sys, threading, precast
        # A process that was started in the background ignores the signal until it says otherwise.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("begun", flush=True)
        told = []
        def progress(state):
            # Opening goes on for as long as its caller is told; an interrupt must not wait for that.
            if not told:
                told.append(state)
                print("compiling", flush=True)
            threading.Event().wait(600)
        try:
            precast.InferenceSession(sys.argv[1], max_batch=8, startup="all", progress=progress)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            os._exit(7)
        """
    )
    child = subprocess.Popen([sys.executable, "-c", script, readme_model], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline().strip() == "begun"
    assert child.stdout.readline().strip() == "compiling"
    child.send_signal(signal.SIGINT)
    output, _ = child.communicate(timeout=60)
    assert output.strip() == "interrupted" and child.returncode == 7


def test_sessions_come_and_go_while_buckets_are_compiled(readme_model):
    for _ in range(3):
        told = []
        session = precast.InferenceSession(readme_model, max_batch=4, progress=told.append)
        del session
        assert told and told[0]["total"] == 3
