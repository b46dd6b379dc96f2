"""Compiling ahead of time, and the cache that Programs are kept in."""

import numpy
import precast
import pytest


def test_buckets_are_compiled_once_into_a_cache(linear, tmp_path):
    told = []
    done = precast.compile(linear, cache=tmp_path, max_batch=4, progress=told.append)
    assert done["compiles"] == 3 and len(done["buckets"]) == 3
    assert told[-1]["phase"] == "ready" or told[-1]["done"] == told[-1]["total"]
    assert precast.compile(linear, cache=tmp_path, max_batch=4)["compiles"] == 0
    session = precast.InferenceSession(linear, cache=tmp_path, max_batch=4, startup="all")
    assert session.compiles == 0 and session.warm()
    session.run(None, {"x": numpy.zeros((3, 4), numpy.float32)})
    assert session.last_run.tier in ("fast", "ultra-fast", "standard")


def test_a_cache_says_what_it_holds_and_why_it_misses(linear, tmp_path):
    precast.compile(linear, cache=tmp_path, max_batch=2)
    assert len(precast.cache.ls(tmp_path)) == 2
    assert precast.cache.verify(tmp_path) == []
    rows = precast.cache.why(linear, tmp_path, max_batch=4)
    assert [row["hit"] for row in rows] == [True, True, False]
    missing = rows[2]
    assert missing["miss"] == "absent" and missing["differs"][0][:2] == ("bucket.batch", "4")
    removed, _ = precast.cache.gc(tmp_path, 0)
    assert precast.cache.verify(tmp_path) == [] and isinstance(removed, list)


def test_caches_are_shared_through_a_store(linear, tmp_path):
    one, other, store = tmp_path / "one", tmp_path / "other", tmp_path / "store"
    store.mkdir()
    other.mkdir(mode=0o700)
    precast.compile(linear, cache=one, max_batch=2)
    assert precast.cache.push(one, str(store)) == 2
    assert precast.cache.pull(other, str(store)) == 2
    assert precast.compile(linear, cache=other, max_batch=2)["compiles"] == 0
    third = tmp_path / "third"
    assert precast.compile(linear, cache=third, cache_remote=str(store), max_batch=2)["compiles"] == 0


def test_one_program_is_written_to_a_file(linear, tmp_path):
    path = tmp_path / "linear.program"
    inputs = {"x": numpy.zeros((2, 4), numpy.float32)}
    assert precast.compile(linear, path, inputs=inputs) is None
    assert sorted(found.name for found in tmp_path.iterdir()) == ["linear.program", "linear.program.constants"]


def test_mistakes_are_told(linear, tmp_path):
    with pytest.raises(precast.UsageError, match="cache=FOLDER"):
        precast.compile(linear)
    with pytest.raises(precast.UsageError, match="inputs must say its sizes"):
        precast.compile(linear, tmp_path / "program")
    with pytest.raises(precast.UsageError, match="there is no folder"):
        precast.cache.ls(tmp_path / "nowhere")
    with pytest.raises(precast.UsageError, match="cache, its folder, is missing"):
        precast.InferenceSession(linear, cache_remote="s3://bucket")


def test_progress_is_told_in_lines_or_by_a_bar(capsys, monkeypatch):
    states = [
        {"phase": "programs", "done": done, "total": 2, "compiled": done, "failed": 0, "bucket": None, "elapsed": 3.0, "eta": 1.0}
        for done in (0, 1, 2)
    ]
    ready = {**states[-1], "phase": "ready"}
    bar = precast.progress_bar()
    for state in [*states, ready]:
        bar(state)
    assert "Buckets 2 of 2, 2 compiled" in capsys.readouterr().err
    monkeypatch.setitem(__import__("sys").modules, "tqdm.auto", None)
    lines = precast.progress_bar()
    for state in [*states, ready]:
        lines(state)
    assert capsys.readouterr().err.splitlines()[-1] == "Buckets 2 of 2, 2 compiled, about 1 s left"
