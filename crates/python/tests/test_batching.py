"""Requests joined to batches, without a cluster around them."""

import numpy
import precast
import pytest
from precast.batching import BatchRunner


def rows(count, seed):
    return numpy.random.default_rng(seed).standard_normal((count, 4), dtype=numpy.float32)


@pytest.fixture(scope="module")
def runner(linear):
    return BatchRunner(precast.InferenceSession(linear, max_batch=8, startup="all"))


def test_requests_are_joined_up_to_the_largest_bucket_and_taken_apart(runner):
    feeds = [{"x": rows(count, count)} for count in [1, 3, 2, 5, 1]]
    results = runner.run(feeds)
    for feed, result in zip(feeds, results, strict=True):
        (expected,) = runner.session.run(None, feed)
        assert result["y"].shape == expected.shape
        numpy.testing.assert_allclose(result["y"], expected, rtol=1e-5)
    assert runner._batches([0, 1, 2, 3, 4], feeds) == [[0, 1, 2], [3, 4]]


def test_one_that_fails_costs_no_other(runner):
    good = {"x": rows(2, 1)}
    bad = [{"z": rows(1, 1)}, {"x": rows(1, 1).astype(numpy.float64)}, {"x": rows(1, 1)[:, :2]}, {"x": numpy.float32(1)}]
    results = runner.run([good, *bad, good])
    assert all(isinstance(result, precast.UsageError) for result in results[1:5])
    assert (results[0]["y"] == results[5]["y"]).all()


def test_requests_of_a_model_without_a_batch_run_one_by_one(two_outputs):
    runner = BatchRunner(precast.InferenceSession(two_outputs))
    ones = numpy.ones((2, 2), numpy.float32)
    results = runner.run([{"a": ones, "b": ones}, {"a": ones * 2, "b": ones}])
    assert [result["sum"][0, 0] for result in results] == [2, 3]
