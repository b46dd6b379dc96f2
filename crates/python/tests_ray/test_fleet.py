"""Ray Serve on one machine: replicas start on one compile, batches are joined, and a killed replica costs no request."""

import os
import signal
import threading
import time
from pathlib import Path

import numpy
import precast
import precast.ray
import pytest
import ray
from ray import serve

ROOT = Path(__file__).resolve().parents[3]
MODEL = str(ROOT / "models" / "recsys190" / "recsys190.onnx")
REPLICAS = 4
CLIENTS = 8
# One Bucket, so that the compiles of the whole fleet are one.
BUCKET = 16


def feed(rows, seed=0):
    generator = numpy.random.default_rng(seed)
    inputs = {}
    for node in SESSION.get_inputs():
        shape = [size if isinstance(size, int) else rows for size in node.shape]
        is_float = node.type == "tensor(float)"
        inputs[node.name] = (
            generator.random(shape, dtype=numpy.float32) if is_float else numpy.ones(shape, dtype=numpy.int64)
        )
    return inputs


SESSION = precast.InferenceSession(MODEL)


@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=4, include_dashboard=False, logging_level="warning", log_to_driver=False)
    yield
    serve.shutdown()
    ray.shutdown()


@pytest.fixture(scope="module")
def handle(cluster, tmp_path_factory):
    app = precast.ray.deployment(
        MODEL,
        num_replicas=REPLICAS,
        max_batch=BUCKET,
        buckets=str(BUCKET),
        cache=str(tmp_path_factory.mktemp("cache")),
        startup="all",
        threads=1,
        providers=["cpu"],
        ray_actor_options={"num_cpus": 0.1},
    )
    return serve.run(app, name="fleet", route_prefix="/fleet")


def all_stats(handle, processes, seconds=60):
    """What every replica says of itself, by process."""
    seen, end = {}, time.monotonic() + seconds
    while len(seen) < processes and time.monotonic() < end:
        stats = handle.stats.remote().result(timeout_s=30)
        seen[stats["pid"]] = stats
    return seen


def test_replicas_start_on_one_compile(handle):
    stats = all_stats(handle, REPLICAS)
    assert len(stats) == REPLICAS
    assert sum(replica["compiles"] for replica in stats.values()) == 1, stats
    assert all(replica["buckets"] == [BUCKET] for replica in stats.values())


def test_requests_of_any_size_are_answered_and_joined(handle):
    feeds = [feed(1 + seed % 5, seed) for seed in range(48)]
    responses = [handle.infer.remote(each) for each in feeds]
    for each, response in zip(feeds, responses):
        outputs = response.result(timeout_s=60)
        for (name, output), expected in zip(outputs.items(), SESSION.run(None, each), strict=True):
            numpy.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-6, err_msg=name)
    stats = all_stats(handle, REPLICAS)
    requests, batches = (sum(replica[what] for replica in stats.values()) for what in ["requests", "batches"])
    assert requests == 48 and batches < requests, stats


def test_a_request_that_does_not_fit_fails_alone(handle):
    good, bad = feed(2), {**feed(2), "no_such_input": numpy.zeros(1, numpy.float32)}
    answers = [handle.infer.remote(each) for each in [good, bad, good]]
    assert answers[0].result(timeout_s=60) and answers[2].result(timeout_s=60)
    with pytest.raises(Exception, match="there is no input 'no_such_input'"):
        answers[1].result(timeout_s=60)


def test_a_killed_replica_costs_no_request(handle):
    inputs = [feed(1 + number % 4, number) for number in range(CLIENTS)]
    expected = [SESSION.run(None, each)[0] for each in inputs]
    is_over, counts, faults = threading.Event(), [0] * CLIENTS, []

    def client(number):
        while not is_over.is_set():
            try:
                outputs = precast.ray.infer(handle, inputs[number], timeout_s=60)
                if not numpy.allclose(next(iter(outputs.values())), expected[number], rtol=1e-4, atol=1e-6):
                    faults.append(f"client {number}: a wrong answer")
            except Exception as error:
                faults.append(f"client {number}: {type(error).__name__}: {error}")
            counts[number] += 1

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    before = all_stats(handle, REPLICAS)
    time.sleep(1)
    victim = next(iter(before))
    os.kill(victim, signal.SIGKILL)
    time.sleep(6)
    is_over.set()
    for thread in threads:
        thread.join()
    assert faults == [] and min(counts) > 0, (faults[:3], counts)
    # The fleet is whole again, and the new replica found what it needed in the cache.
    deadline = time.monotonic() + 60
    while True:
        after = all_stats(handle, REPLICAS, seconds=10)
        after.pop(victim, None)
        if len(after) == REPLICAS or time.monotonic() > deadline:
            break
    assert len(after) == REPLICAS and victim not in after
    assert sum(replica["compiles"] for replica in after.values()) <= 1, after
    print(f"{sum(counts)} requests by {CLIENTS} clients, one replica of {REPLICAS} killed, none lost")
