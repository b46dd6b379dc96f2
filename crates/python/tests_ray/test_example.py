"""The example program for Ray Serve, as a user starts it."""

import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
MODEL = PACKAGE.parents[1] / "models" / "recsys190" / "recsys190.onnx"


def test_the_example_answers(tmp_path):
    example = PACKAGE / "examples" / "serve_fleet.py"
    ran = subprocess.run(
        [sys.executable, str(example), str(MODEL)], cwd=tmp_path, capture_output=True, text=True, timeout=180
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "(3," in ran.stdout or "(3)" in ran.stdout, ran.stdout
