"""No name is used on every library that some library lacks, by a recorded table of names.

`tensorrt_names.json` says which names were found in the bindings of TensorRT 10.3.0, 10.16.1,
11.4.0 and TensorRT-RTX 1.7.1. A name that is recorded for the last only was not looked for in the
others, so it counts as missing there.
"""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import json
from pathlib import Path
from types import ModuleType

import pytest

from gain_export.engine import compile as compile_module
from gain_runtime import tensorrt_library, tensorrt_session

VERSIONS = {"10.3", "10.16", "11.4", "rtx-1.7"}
NAMES: dict[str, list[str]] = json.loads(
    (Path(__file__).parent / "tensorrt_names.json").read_text(encoding="utf-8")
)
MODULES = [compile_module, tensorrt_library, tensorrt_session]
# What a `hasattr` proves the presence of, besides the name it asks for: added by one release.
COMES_WITH = {
    "set_compute_capability": {"num_compute_capabilities", "ComputeCapability"},
    "create_runtime_cache": {"set_runtime_cache"},
}


def unguarded(source: str) -> set[str]:
    """Recorded names that are used, are not everywhere, and are not asked for with `hasattr`."""
    tree = ast.parse(source)
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    asked = {
        node.args[1].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "hasattr"
        and isinstance(node.args[1], ast.Constant)
    }
    proven = asked.union(*(COMES_WITH.get(name, set()) for name in asked))
    return {name for name in used & NAMES.keys() if set(NAMES[name]) != VERSIONS} - proven


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_names_that_some_library_lacks_are_asked_for(module: ModuleType):
    assert unguarded(inspect.getsource(module)) == set()


def test_recorded_names_are_really_used():
    used = {
        node.attr
        for module in MODULES
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Attribute)
    }
    assert {"STRONGLY_TYPED", "set_compute_capability", "execute_async_v3"} <= used & NAMES.keys()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        pytest.param("config.set_flag(trt.BuilderFlag.FP16)", {"FP16"}, id="removed-in-11"),
        pytest.param(
            "config.tiling_optimization_level = 1", {"tiling_optimization_level"}, id="new"
        ),
        pytest.param(
            "if hasattr(c, 'tiling_optimization_level'):\n c.tiling_optimization_level = 1",
            set(),
            id="asked-for",
        ),
        pytest.param("context.execute_async_v3(stream)", set(), id="everywhere"),
    ],
)
def test_the_check_itself(source, found):
    assert unguarded(source) == found


def test_table_is_true_of_the_installed_library():
    library = pytest.importorskip("tensorrt_rtx")
    if not importlib.metadata.version("tensorrt-rtx").startswith("1.7."):
        pytest.skip("the table describes TensorRT-RTX 1.7")
    owners = [library, *(getattr(library, name) for name in dir(library))]
    there = {name for name in NAMES if any(hasattr(owner, name) for owner in owners)}
    assert there == {name for name, versions in NAMES.items() if "rtx-1.7" in versions}
