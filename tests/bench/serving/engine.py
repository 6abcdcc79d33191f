"""A stand-in for SGLang: a folder whose module `sglang` has an Engine with a clock of its own.

It finds plugins as SGLang does and prints the lines that SGLang and the plugins print. Its clock is
the one its process measures with, so a round takes exactly as long as it is told to.
"""

from __future__ import annotations

import json
from pathlib import Path

ROUND_MS = {"sglang": 6.5, "wts": 6.1, "null_head": 6.0}

_ENGINE = """
import json, math, os, sys, time
from importlib.metadata import entry_points

_now = 0.0
time.perf_counter = lambda: _now
_faults = json.loads(os.environ.get("FAKE_FAULTS", "{}"))
_rounds_ms = {"sglang": 6.5, "wts": 6.1, "null_head": 6.0}


def _path():
    found = {point.value for point in entry_points(group="sglang.srt.plugins")}
    if "wts.bench.serving.null_head:install" in found:
        return "null_head"
    ours = any(value.startswith("wts.engines.sglang") for value in found)
    return "wts" if ours and os.environ.get("WTS_SGLANG") != "0" else "sglang"


def _is_greedy():
    found = {point.value for point in entry_points(group="sglang.srt.plugins")}
    return "wts.bench.serving.greedy_only:install" in found


class Engine:
    def __init__(self, **arguments):
        self.arguments, self.path, self.calls_of_many = arguments, _path(), 0
        with open(os.environ["FAKE_STARTS"], "a") as starts:
            about = {"path": self.path, "greedy": _is_greedy(), **arguments}
            starts.write(json.dumps(about) + "\\n")
        print("what an engine prints is no answer")
        fault = _faults.get(self.path, "")
        if fault == "crash":
            raise RuntimeError("out of memory, says the stand-in")
        lines = []
        if self.path == "wts":
            on = "on for SGLang's DSpark draft: markov head; batch 1 to 4: 1 kernel, 98 % resident"
            text = "off for SGLang: no Hopper GPU" if fault == "off" else on
            lines.append("wts: " + text)
        if self.path == "null_head":
            lines.append("wts null head: DSpark blocks of 16 are a fixed random draw")
        if arguments["speculative_algorithm"] == "DFLASH":
            lines.append("DFLASH Domino rollout folded into the draft cuda graph (tp=1).")
        else:
            other = self.path != "sglang" and fault != "off"
            tail = "; the NVIDIA megakernel may run it." if other else "."
            lines.append("DSpark draft proposal (sampling) folded into the draft cuda graph" + tail)
        if fault != "mute":
            for line in lines:
                print("[2026-01-01 00:00:00] " + line, file=sys.stderr)

    def generate(self, *, input_ids, sampling_params):
        global _now
        with open(os.environ["FAKE_STARTS"] + ".calls", "a") as calls:
            with open(os.environ["FAKE_STARTS"]) as starts:
                calls.write(f"{self.path} {len(starts.readlines())}\\n")
        fault = _faults.get(self.path, "")
        self.calls_of_many += len(input_ids) > 1
        if self.calls_of_many > {"hang": 0, "hang later": 3}.get(fault, math.inf):
            time.sleep(600)
        if fault == "fall" and len(input_ids) > 1:
            raise RuntimeError("illegal memory access, says the stand-in")
        length = float(os.environ.get("SGLANG_SIMULATE_ACC_LEN", "2"))
        num_tokens = sampling_params["max_new_tokens"]
        rounds = math.ceil(num_tokens / length)
        _now += 0.02 + rounds * _rounds_ms[self.path] / 1000
        outputs = []
        for number, prompt in enumerate(input_ids):
            tokens = [(prompt[0] + place) % 1000 for place in range(num_tokens)]
            if fault == "texts" and number == 0:
                tokens[7:] = [0] * (num_tokens - 7)
            meta = {"completion_tokens": num_tokens, "spec_verify_ct": rounds}
            outputs.append({"output_ids": tokens, "meta_info": meta})
        return outputs

    def shutdown(self):
        pass
"""


def install(folder: Path, *, plugin: bool = True) -> Path:
    """Write the module, and a distribution that has the plugin's entry point."""
    (folder / "sglang").mkdir(parents=True)
    (folder / "sglang" / "__init__.py").write_text(_ENGINE)
    if plugin:
        info = folder / "weights_that_stay_stand_in-0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stand-in\nVersion: 0\n")
        points = "[sglang.srt.plugins]\nwts = wts.engines.sglang.plugin:load\n"
        (info / "entry_points.txt").write_text(points)
    return folder


def starts(file: Path) -> list[dict[str, object]]:
    """The arguments of every start so far, and its path."""
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text().splitlines()]
