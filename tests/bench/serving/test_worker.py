"""A worker ends with its parent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from wts.bench.serving import starts

LIMIT_S = 60.0


def test_a_worker_whose_parent_is_gone_ends(tmp_path: Path) -> None:
    (tmp_path / "sglang.py").write_text(
        "class Engine:\n    def shutdown(self):\n        print('shut down')\n"
    )
    (tmp_path / "job.json").write_text(json.dumps({"engine": {}}))
    files = [str(tmp_path / "job.json"), str(tmp_path / "results.jsonl")]
    done = subprocess.run(
        [sys.executable, "-m", "wts.bench.serving.worker", *files],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{Path(starts.__file__).parents[3]}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT_S,
    )
    assert (done.returncode, done.stdout) == (0, b".")  # ready; nobody asked for more
    assert done.stderr == b"shut down\n"
    events = [json.loads(line)["event"] for line in (tmp_path / "results.jsonl").open()]
    assert events == ["ready", "done"]
