"""Every command that a page shows: run as it stands there, or listed below with the reason.

Cameras, addresses and folders of a device are replaced by what is at hand (`STAND_INS`), and the
files that a command names are made by the commands before it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_text import network
from PIL import Image

from gain_apps import bench, evaluate, export, state, stream
from gain_apps.evaluation.suite_file import load_suite, suite_path
from gain_export.images import synthetic_images
from gain_runtime.files.adaptive import load_adaptive
from gain_runtime.files.artifact import load_artifact

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *(ROOT / folder / "README.md" for folder in ("deploy", "examples", "models/roadsigns")),
    *sorted((ROOT / "docs").rglob("*.md")),
)
PROGRAMS = {
    "gain-export": export,
    "gain-stream": stream,
    "gain-eval": evaluate,
    "gain-bench": bench,
    "gain-state": state,
}

# The pages that a test of their own runs from the first command to the last.
ELSEWHERE = {
    "docs/tutorial.md": "docs/test_pages.py",
    "docs/how-to/service.md": "docs/test_pages.py",
    "docs/how-to/imagenet-c.md": "evaluation/test_reproduce_page.py",
}
# What is not run and why; its files, flags and extras are compared with what there is. The first
# pattern that a command begins with counts.
NOT_RUN = {
    r"(\S*/)?pip |python3 -m venv|sudo |python3 -c .* sudo ": "changes the machine it runs on",
    r"make test": "runs these tests",
    r"gain-\S+ .*--device (cuda|tensorrt)|.*--engine|python benchmarks/gpu": "needs an NVIDIA GPU",
    r"trtexec": "needs an NVIDIA GPU and TensorRT",
    r"gain-stream 'filesrc|~/gain/bin/python|tegrastats": "needs a Jetson",
    r"gain-bench .* --timm": "needs the weights of ViT-B/16",
    r"ray |serve |curl --data|gain-eval .* --ray": "needs a Ray cluster; tests/scale starts one",
    r"curl -X POST": "needs the service of another page, whose test sends it",
    r"export GAIN_BEDS|gain-eval suite": "needs feature dumps, and hours",
    r"([A-Z_]+=\d )?python models/": "takes up to half an hour; tests/roadsigns runs the parts",
    r"journalctl": "needs the installed service",
}
STAND_INS = {
    r"(?<=gain-stream )(0|CAMERA)(?= )": "clip.mp4",
    r"rtsp://\S+|/dev/video0|'srt://\S+'": "clip.mp4",
    r"/var/(lib|log)/(gain/)?": "",
    r"--serve 8080": "--serve 0",
    r"test://drive(?= )|test://drive\?resolution=crop": "test://drive?resolution=crop&frames=64",
    r"MODEL\.adaptive": "net.adaptive",
}
# More than a few seconds: torch, a thousand drawn signs, hundreds of frames, int8.
SLOW = r"gain-export vit_b16.onnx$|.*--timm|.*test://signs|make demo|gain-bench|python - <<|.* out/"


def blocks(text: str) -> Iterator[list[str]]:
    """The commands of each block of shell of a page, whole where they take several lines."""
    for language, block in re.findall(r"^```(.*?)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        if language not in ("bash", "sh", ""):
            continue
        found, command = [], ""
        for line in block.splitlines():
            command += line + "\n"
            if line.endswith("\\") or ("<<'EOF'" in command and line != "EOF"):
                continue
            try:
                words = shlex.split(command, comments=True)
            except ValueError:  # a quotation that goes on
                continue
            if words:
                found.append(command if "<<" in command else _without_comment(command))
            command = ""
        assert not command.strip(), command
        yield found


def _without_comment(command: str) -> str:
    return re.sub(r"\s+# .*$", "", command.replace("\\\n", " "), flags=re.MULTILINE).strip()


BLOCKS = [
    (page, block)
    for page in PAGES
    if page.relative_to(ROOT).as_posix() not in ELSEWHERE
    for block in blocks(page.read_text("utf-8"))
]


def is_run(command: str) -> bool:
    return not any(re.match(pattern, command) for pattern in NOT_RUN)


def name_of(page: Path, command: str) -> str:
    return f"{page.relative_to(ROOT).with_suffix('')}-{' '.join(command.split())[:50]}"


def cases() -> Iterator[object]:
    """What is run of each block, and apart from it what takes longer."""
    for page, block in BLOCKS:
        for slow in (False, True):
            run = [each for each in block if is_run(each) and bool(re.match(SLOW, each)) == slow]
            if run:
                marks = [pytest.mark.slow] if slow else []
                yield pytest.param(run, id=name_of(page, run[0]), marks=marks)


def small_network(size_px: int, *, boxes: bool) -> onnx.ModelProto:
    """Convolutions, a pooled vector, a Softmax; `boxes` adds a second output."""
    rng = np.random.default_rng(2)
    arrays = {
        "kernel": rng.normal(size=(12, 3, 4, 4)),
        "w": rng.normal(size=(5, 12)),
        "box": rng.normal(size=(4, 12)),
    }
    outputs = {"probs": ["N", 5], "boxes": ["N", 4]}
    if not boxes:
        del outputs["boxes"]
    return network(
        "maps = Conv<strides=[4, 4]>(input, kernel); positive = Relu(maps);"
        "pooled = GlobalAveragePool(positive); vector = Flatten(pooled);"
        "scores = Gemm<transB=1>(vector, w); probs = Softmax(scores);"
        "boxes = Gemm<transB=1>(vector, box)",
        arrays,
        inputs={"input": ["N", 3, size_px, size_px]},
        outputs=outputs,
    )


FLAGS = "--mean 0.5 --std 0.5 --crop-pct 1 --interpolation bilinear"
SIGNS = f"models/roadsigns/roadsigns.onnx {FLAGS}"
# How the files come about that blocks expect, in this order.
MADE = (
    f"gain-export classifier.onnx {FLAGS} --labels names.txt --output vit_b16.onnx",
    f"gain-export classifier.onnx {FLAGS} --labels names.txt --output mine.onnx",
    f"gain-export {SIGNS} --output roadsigns.gain.onnx",
    f"gain-export {SIGNS} --adaptive --output net.gain.onnx",
    "gain-stream 'test://pattern?frames=24' --model vit_b16.onnx --output clip.mp4",
    "gain-stream clip.mp4 --model net.gain.onnx --state-out north.safetensors",
    "gain-stream clip.mp4 --model net.gain.onnx --state-out south.safetensors",
)


def call(command: str) -> int:
    """A command of the project in this process, anything else in a shell."""
    program, *words = shlex.split(command)
    if program in PROGRAMS and not re.search(r"[|><]", command):
        return PROGRAMS[program].main(words)
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PATH": programs},
        timeout=280,
        check=False,
    )
    return done.returncode


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that blocks expect; read only."""
    folder = tmp_path_factory.mktemp("stock")
    onnx.save(small_network(224, boxes=False), folder / "classifier.onnx")
    onnx.save(small_network(32, boxes=True), folder / "detector.onnx")
    names = [f"kind {index}" for index in range(5)]
    (folder / "names.txt").write_text("".join(f"{name}\n" for name in names))
    for index, image in enumerate(synthetic_images(32, seed=3)):
        for path in (f"photos/{index}.png", f"frames/{names[index % 5]}/{index}.png"):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / path)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in MADE:
            lay_out(command, folder)
            assert call(command) == 0, command
    return folder


def lay_out(command: str, stock: Path) -> None:
    """Put what the command reads into the working folder, and nothing that it makes."""
    made = re.findall(r"(?:--output|-o|>) (\S+)", command)
    # Names of what timm is asked for.
    if "--timm" in command or command == "gain-export vit_b16.onnx":
        made += ["mine.onnx", "vit_b16.onnx"]
    for path in stock.iterdir():
        if path.name in command and path.name not in made and not Path(path.name).exists():
            copy = shutil.copytree if path.is_dir() else shutil.copy
            copy(path, path.name)
    for name in re.findall(r"models/roadsigns|examples/\w+\.py|Makefile", f"{command} "):
        if not Path(name).exists():
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).symlink_to(ROOT / name)
    if "mine.safetensors" in command:
        timm = pytest.importorskip("timm", reason="the extra export is not installed")
        from safetensors.torch import save_file

        weights = timm.create_model("deit_tiny_patch16_224", num_classes=5).state_dict()
        save_file(weights, "mine.safetensors")


@pytest.mark.parametrize("block", tuple(cases()))
def test_a_shown_block_does_what_the_page_says(block, stock, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for command in block:
        for what, there in STAND_INS.items():
            command = re.sub(what, there, command)
        if command.startswith("ffmpeg") and shutil.which("ffmpeg") is None:
            pytest.skip("ffmpeg is not installed")
        if command == "make demo":
            command = prepare_demo(tmp_path)
        lay_out(command, stock)
        before = times(tmp_path)
        status = call(command)
        said = capfd.readouterr()
        if command == "gain-export vit_b16.onnx" and status:
            # Without the hub, one line says how to go on.
            assert "--weights FILE" in said.err
            assert said.err.count("\n") == 1
            continue
        assert status == 0, f"{command}: {said.err}"
        check_files(command, [at for at, when in times(tmp_path).items() if before.get(at) != when])
        if "gain-stream" in command and "clip.mp4" in command:
            assert re.search(r"frames +│ +(24|24 \(0 unreadable)", said.err), said.err


def times(folder: Path) -> dict[Path, int]:
    """When each file was written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def check_files(command: str, changed: list[Path]) -> None:
    """What the command promises to write is there, and what it wrote can be read."""
    named = re.findall(r"--(?:output|json|state-out|triton) ([\w./]+)", command)
    assert [name for name in named if not Path(name).exists()] == []
    for path in changed:
        assert path.stat().st_size > 0 or path.name == ".lock", path
        if path.name.endswith(".adaptive.onnx"):
            assert load_adaptive(path).state
        elif path.suffix == ".onnx" and "--triton" not in command:
            manifest = load_artifact(path).manifest
            assert manifest.verification.get("verified", "yes") == "yes"
            if "--calibrate" in command and "--precision" not in command:
                assert manifest.fitness is not None


def prepare_demo(folder: Path) -> str:
    """`make demo` of a short drive, with the programs that are installed here."""
    (folder / "models").symlink_to(ROOT / "models")
    (folder / "venv").mkdir()
    (folder / "venv" / "bin").symlink_to(Path(sys.executable).parent)
    (folder / "pyproject.toml").touch()
    (folder / "venv" / ".ready").touch()
    return "make -f Makefile demo DEMO_VENV=venv DEMO_FRAMES=64"


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, id=name_of(page, command))
        for page, block in BLOCKS
        for command in block
        if not is_run(command)
    ],
)
def test_what_is_not_run_names_what_exists(command):
    for part in re.split(r" && |(?<!\S)\| ", command):
        program, *words = shlex.split(part)
        if program in PROGRAMS:
            module = PROGRAMS[program]
            if words[0] in ("suite", "compare", "report"):
                assert load_suite(suite_path(words[1])).inputs
                parser = getattr(module, f"_{words.pop(0)}_parser")()
            else:
                parser = module.build_parser()
            assert parser.parse_args(words) is not None
        if program == "make":
            assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        for extras in re.findall(r"\.\[([\w,-]+)\]", part):
            project = (ROOT / "pyproject.toml").read_text("utf-8")
            for extra in extras.split(","):
                assert re.search(rf"^{extra} = \[", project, re.MULTILINE), extra
        named = [word for word in words if re.match(r"(deploy|benchmarks|models|examples)/", word)]
        assert [word for word in named if not (ROOT / word).exists()] == []
        if program == "python" and named:
            text = (ROOT / named[0]).read_text("utf-8")
            assert [flag for flag in words if flag.startswith("--") and flag not in text] == []


def test_the_reasons_are_of_commands_that_are_shown():
    """A line of `NOT_RUN` that no page needs any more is to go."""
    shown = [command for _, block in BLOCKS for command in block]
    assert [each for each in NOT_RUN if not any(re.match(each, one) for one in shown)] == []
    files = [ROOT / page for page in ELSEWHERE] + [TESTS / test for test in ELSEWHERE.values()]
    assert [path for path in files if not path.is_file()] == []


def test_flags_and_targets_in_running_text_are_those_of_the_commands():
    wrong = []
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    for page in PAGES:
        named = set(re.findall(r"`make (\w+)`", page.read_text("utf-8")))
        wrong += [f"{page.name}: make {name}" for name in named - set(targets)]
        for program, rest in re.findall(r"`(gain-\w+)( [^`]*)`", page.read_text("utf-8")):
            if program not in PROGRAMS or page.name == "changelog.md":
                continue
            module, words = PROGRAMS[program], rest.split()
            inner = f"_{words[0]}_parser" if words[0] in ("suite", "compare", "report") else ""
            parser = getattr(module, inner or "build_parser")()
            known = {name for action in parser._actions for name in action.option_strings}
            if parser._subparsers is None:
                used = {word for word in words if re.match("--[a-z]", word)}
                wrong += [f"{page.name}: {program} {flag}" for flag in used - known]
    assert wrong == []


def test_the_refusal_that_the_page_shows_is_the_one_that_comes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = ["--mean", "0.5", "--std", "0.25", "--crop-pct", "1", "--interpolation", "bilinear"]
    onnx.save(small_network(32, boxes=True), "net.onnx")
    assert export.main(["net.onnx", *flags]) == 1
    shown = " ".join((ROOT / "docs" / "how-to" / "export.md").read_text().split())
    assert " ".join(capsys.readouterr().err.split()) in shown
