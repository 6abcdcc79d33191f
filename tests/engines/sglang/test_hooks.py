"""The hooks beside a small SGLang of files: absent, too old, present, and where they do not take.

Its hook registry keeps the contract of sglang/srt/plugins/hook_registry.py (0.5.23): a hook that
cannot be applied is logged and not raised.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import wts

REGISTRY = """
import enum, logging, pkgutil

class HookType(enum.Enum):
    AROUND = "around"

class HookRegistry:
    waiting = []

    @classmethod
    def register(cls, target, hook, hook_type):
        assert hook_type is HookType.AROUND
        cls.waiting.append((target, hook))

    @classmethod
    def apply_hooks(cls):
        for target, hook in cls.waiting:
            try:
                path, _, name = target.rpartition(".")
                owner = pkgutil.resolve_name(path)
                setattr(owner, name, _around(getattr(owner, name), hook))
            except Exception as error:
                logging.getLogger("sglang").error("Failed to apply hooks to %s", target)
        cls.waiting.clear()

def _around(original, hook):
    return lambda *args, **kwargs: hook(original, *args, **kwargs)
"""
BINDING = """
THEIRS = None

def megakernel_draft_sampler(draft_model):
    return THEIRS
"""
ROLLOUT = """
def domino_greedy_rollout(*, draft_hidden, embed_proj, in_cuda_graph):
    return "SGLang's own"
"""
GROUP = """
from types import SimpleNamespace

def get_dp_tp_group():
    return SimpleNamespace(world_size=1, cpu_group=None)
"""
FILES = {
    "srt/plugins/hook_registry.py": REGISTRY,
    "srt/kernel_plugins/nvidia/binding.py": BINDING,
    "srt/speculative/domino_utils.py": ROLLOUT,
    "srt/layers/dp_attention.py": GROUP,
}
SETUP = """
import logging, sys
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stdout)
from wts.engines.sglang.plugin import register
register()
"""
APPLY = """
from sglang.srt.plugins.hook_registry import HookRegistry
HookRegistry.apply_hooks()
"""


def build_sglang(folder: Path, version: str = "0.5.23", **changed: str) -> None:
    """A package called sglang, its metadata, and the files that hooks touch."""
    for name, text in FILES.items():
        path = folder / "sglang" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(changed.get(path.stem, text))
    for parent in {folder / "sglang", *(folder / "sglang").rglob("*")}:
        if parent.is_dir():
            (parent / "__init__.py").touch()
    info = folder / f"sglang-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")


def run(folder: Path, code: str, **environment: str) -> str:
    """What a fresh process prints, in which only this folder may hold an SGLang."""
    source = Path(wts.__file__).parents[1]
    paths = [str(folder), str(source), str(Path(__file__).parents[2])]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WTS_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=kept | {"PYTHONPATH": os.pathsep.join(paths)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def installed_here(folder: Path) -> bool:
    """Whether the interpreter itself has an SGLang, which these tests could not hide."""
    code = "from importlib.util import find_spec; print(find_spec('sglang'))"
    return run(folder, code).strip() != "None"


def test_absent(tmp_path: Path) -> None:
    if installed_here(tmp_path):
        pytest.skip("this environment has SGLang, so its absence cannot be tried")
    assert run(tmp_path, SETUP) == "WARNING wts: off for SGLang: SGLang is not installed\n"


def test_too_old(tmp_path: Path) -> None:
    build_sglang(tmp_path, version="0.5.21", binding="raise ImportError('not in this version')")
    code = SETUP + APPLY + "print('sglang.srt.kernel_plugins.nvidia.binding' in sys.modules)"
    assert run(tmp_path, code).splitlines() == [
        "WARNING wts: off for SGLang: this is SGLang 0.5.21, wanted is 0.5.23",
        "False",
    ]


def test_too_old_is_seen_before_the_log_is_set_up(tmp_path: Path) -> None:
    """SGLang loads plugins first."""
    build_sglang(tmp_path, version="0.5.21")
    code = (
        "import os, sys; os.dup2(1, 2)\nfrom wts.engines.sglang.plugin import register\nregister()"
    )
    assert "this is SGLang 0.5.21, wanted is 0.5.23" in run(tmp_path, code)


def test_turned_off(tmp_path: Path) -> None:
    build_sglang(tmp_path)
    code = SETUP + "print(len(__import__('sglang.srt.plugins.hook_registry', fromlist=['']"
    code += ").HookRegistry.waiting))"
    assert run(tmp_path, code, WTS_SGLANG="0").splitlines() == [
        "INFO wts: off for SGLang: WTS_SGLANG=0",
        "0",
    ]
    assert run(tmp_path, code, WTS_SGLANG="1") == "2\n"


LOADED = 'print("torch" in sys.modules)\n'
ASK_ROLLOUT = """
import sglang.srt.speculative.domino_utils as domino
print(domino.domino_greedy_rollout(draft_hidden=1, embed_proj=2, in_cuda_graph=False))
print(type(HookRegistry.__dict__["apply_hooks"]).__name__)
"""


def test_present(tmp_path: Path) -> None:
    build_sglang(tmp_path)
    text = SETUP + LOADED + APPLY + LOADED + ASK_ROLLOUT
    assert run(tmp_path, text).splitlines() == ["False", "False", "SGLang's own", "classmethod"]
    debug = run(tmp_path, text, WTS_SGLANG_VERBOSE="1")
    assert debug.count("DEBUG wts: hooked sglang.srt.") == 2


@pytest.mark.parametrize(
    ("module", "text", "target"),
    [
        ("binding", "def renamed(draft_model): ...", "binding.megakernel_draft_sampler"),
        ("binding", "raise ImportError('broken')", "binding.megakernel_draft_sampler"),
        ("domino_utils", "def renamed(): ...", "domino_utils.domino_greedy_rollout"),
    ],
)
def test_a_hook_that_does_not_take_is_told(
    tmp_path: Path, module: str, text: str, target: str
) -> None:
    build_sglang(tmp_path, **{module: text})
    told = [line for line in run(tmp_path, SETUP + APPLY).splitlines() if "did not take" in line]
    assert len(told) == 1
    assert told[0].startswith("WARNING wts: off: the hook on sglang.srt.")
    assert target in told[0]


def test_a_registry_that_applies_nothing_is_told(tmp_path: Path) -> None:
    idle = REGISTRY.replace("setattr(owner, name, _around(getattr(owner, name), hook))", "pass")
    build_sglang(tmp_path, hook_registry=idle)
    assert run(tmp_path, SETUP + APPLY).count("did not take") == 2


def test_another_plugins_sampler_goes_first(tmp_path: Path) -> None:
    build_sglang(tmp_path, binding=BINDING.replace("None", '"theirs"', 1))
    code = (
        SETUP
        + APPLY
        + (
            "from sglang.srt.kernel_plugins.nvidia import binding\n"
            "print(binding.megakernel_draft_sampler(object()))\n"
        )
    )
    assert run(tmp_path, code).splitlines() == [
        "INFO wts: off for SGLang's DSpark draft: another plugin has a sampler for this draft",
        "theirs",
    ]


DRAFT = """
import torch
from sglang_draft import Buffers, Draft, stand_in
from strategies import hopper
from wts.heads.markov import MarkovHead
from sglang.srt.kernel_plugins.nvidia import binding
head = MarkovHead.random(vocab=517, rank=64, seed=1)
draft = Draft(stand_in(head), vocab=517, hidden_size=40)
"""
ON_EMULATOR = """
from functools import partial
from wts.engines.sglang import events, hooks
hooks.Hooks = partial(hooks.Hooks, backend="emulator", gpu=lambda: hopper(4))
events.attach = lambda kept, release: None
"""


def test_a_draft_model_gets_our_factory(tmp_path: Path) -> None:
    build_sglang(tmp_path)
    code = (
        DRAFT
        + ON_EMULATOR
        + SETUP
        + APPLY
        + (
            "steps = binding.megakernel_draft_sampler(draft)(\n"
            "    **Buffers(head, most=2, steps=4).arguments())\n"
            "tokens, _ = steps(2)(torch.randn(8, 40).bfloat16(), torch.tensor([1, 2]))\n"
            "print(tuple(tokens.shape))\n"
        )
    )
    told = run(tmp_path, code).splitlines()
    assert told[0].startswith("INFO wts: on for SGLang's DSpark draft: markov head, V 517, r 64")
    assert told[1:] == ["(2, 4)"]


def test_without_a_gpu_sglang_goes_on(tmp_path: Path) -> None:
    build_sglang(tmp_path)
    code = SETUP + APPLY + DRAFT + "print(binding.megakernel_draft_sampler(draft))"
    told = run(tmp_path, code, CUDA_VISIBLE_DEVICES="").splitlines()
    assert any("INFO wts: off for SGLang's DSpark draft:" in line for line in told)
    assert told[-1] == "None"


def test_a_rank_without_a_gpu_answers_the_other(tmp_path: Path) -> None:
    group = GROUP.replace("world_size=1", "world_size=2")
    build_sglang(tmp_path, dp_attention=group)
    gather = (
        "def gather(found, given, group):\n"
        "    print('asked', given[0].kind)\n"
        "    found[:] = [(None, None), given]\n"
        "torch.distributed.all_gather_object = gather\n"
    )
    code = SETUP + APPLY + DRAFT + gather + "print(binding.megakernel_draft_sampler(draft))"
    told = run(tmp_path, code, CUDA_VISIBLE_DEVICES="").splitlines()
    assert told.count("asked gpu") == 1
    assert any("off for SGLang's DSpark draft: rank 1: " in line for line in told)


def test_the_entry_point_is_the_one_that_is_declared() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    (value,) = project["project"]["entry-points"]["sglang.srt.plugins"].values()
    module, _, name = value.partition(":")
    assert (module, name) == ("wts.engines.sglang.plugin", "register")
