"""Only the environment tells paths apart, and logs prove them or say what is wrong."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from wts.bench.serving import null_head, paths
from wts.errors import InputError


class TestPaths:
    def test_a_source_tree_stands_in_for_a_distribution(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(paths.metadata, "entry_points", lambda group: [])
        monkeypatch.setattr(paths, "_SOURCE", tmp_path / "src")
        with pytest.raises(InputError, match="paths: wanted an entry point"):
            paths.plugin_folders(tmp_path / "plugins", needed=True)
        assert paths.plugin_folders(tmp_path / "plugins", needed=False).ours is None
        (tmp_path / "pyproject.toml").write_text(
            '[project]\nname = "x"\n[project.entry-points."sglang.srt.plugins"]\nwts = "wts.p:f"\n'
        )
        plugins = paths.plugin_folders(tmp_path / "plugins", needed=True)
        assert plugins.ours is not None
        points = [
            file.read_text()
            for folder in (plugins.ours, plugins.null, plugins.greedy)
            for file in folder.glob("*.dist-info/entry_points.txt")
        ]
        assert points == [
            "[sglang.srt.plugins]\nwts = wts.p:f\n",
            "[sglang.srt.plugins]\nwts_null_head = wts.bench.serving.null_head:install\n",
            "[sglang.srt.plugins]\nwts_greedy = wts.bench.serving.greedy_only:install\n",
        ]

    def test_plugins_of_the_benchmark_do_not_stand_in_for_ours(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        values = ["wts.bench.serving.null_head:install", "wts.bench.serving.greedy_only:install"]
        points = [SimpleNamespace(value=value) for value in values]
        monkeypatch.setattr(paths.metadata, "entry_points", lambda group: points)
        assert paths.plugin_folders(tmp_path, needed=True).ours is not None
        points.append(SimpleNamespace(value="wts.engines.sglang.plugin:register"))
        assert paths.plugin_folders(tmp_path, needed=True).ours is None

    @pytest.mark.parametrize("greedy_only", [False, True])
    def test_only_the_environment_tells_paths_apart(
        self, tmp_path: Path, greedy_only: bool
    ) -> None:
        plugins = paths.Plugins(
            ours=tmp_path / "ours", null=tmp_path / "null", greedy=tmp_path / "greedy"
        )
        made = {
            path: paths.environment_of(
                path,
                {"PYTHONPATH": "/before", "SGLANG_SIMULATE_ACC_LEN": "3", "HOME": "/h"},
                plugins=plugins,
                greedy_only=greedy_only,
                accept_length=0.0,
                scratch=tmp_path,
            )
            for path in paths.PATHS
        }
        assert {path: one["WTS_SGLANG"] for path, one in made.items()} == {
            "sglang": "0",
            "wts": "1",
            "null_head": "0",
        }
        folders = {path: one["PYTHONPATH"].split(":") for path, one in made.items()}
        assert folders["sglang"] == folders["wts"] == folders["null_head"][1:]
        assert folders["null_head"][0] == str(tmp_path / "null")
        assert (str(tmp_path / "greedy") in folders["sglang"]) == greedy_only
        assert folders["wts"][-1] == "/before"
        assert all("SGLANG_SIMULATE_ACC_LEN" not in one for one in made.values())

    @pytest.mark.parametrize(
        ("path", "lines", "fault"),
        [
            ("sglang", ["folded"], None),
            ("sglang", ["folded", "off"], None),
            ("sglang", ["folded", "serves"], "our plugin serves"),
            ("sglang", ["folded, other"], "another sampler"),
            ("sglang", ["folded", "null"], "null head serves"),
            ("sglang", [], "does not say"),
            ("wts", ["folded, other", "serves"], None),
            ("wts", ["folded, other", "off", "serves"], None),
            ("wts", ["folded", "serves"], "took no sampler"),
            ("wts", ["folded, other"], "no line of our plugin"),
            ("wts", ["folded", "off"], "stayed off"),
            ("wts", ["folded, other", "serves", "given up"], "walks were given up"),
            ("wts", ["serves"], "does not say"),
            ("null_head", ["folded, other", "null"], None),
            ("null_head", ["folded, other"], "no line of the null head"),
            ("null_head", ["folded, other", "null", "serves"], "our plugin serves"),
        ],
    )
    def test_a_log_proves_its_path_or_says_what_is_wrong(
        self, path: str, lines: list[str], fault: str | None
    ) -> None:
        texts = {
            "folded": "DSpark draft proposal (sampling) folded into the draft cuda graph.",
            "folded, other": "DSpark draft proposal (greedy draft) folded into the draft cuda "
            "graph; the NVIDIA megakernel may run it.",
            "serves": "[10:00:00 TP0] wts: on for SGLang's DSpark draft: markov head, V 151936; "
            "batch 1 to 4: 1 kernel a block, 98.5 % resident; batch 5: 1 kernel a block, 90 % "
            "resident; batch 6 and above: SGLang's own steps (set off); 9 MiB held",
            "off": "[10:00:00] wts: off for SGLang: WTS_SGLANG=0",
            "given up": "[10:00:09] wts: walk 3 waited too long. Drafts since the last look may be "
            "wrong: greedy output is not affected",
            "null": f"[10:00:00] {null_head.LOG_PREFIX}DSpark blocks",
        }
        found = paths.prove(path, "\n".join(texts[line] for line in lines), "dspark")
        if fault is not None:
            assert isinstance(found, str)
            assert fault in found
            return
        assert isinstance(found, paths.Proof)
        shares = [found.resident_share(batch) for batch in (1, 4, 5, 6, 64)]
        assert shares == ([0.985, 0.985, 0.9, 0, 0] if path == "wts" else [0] * 5)
