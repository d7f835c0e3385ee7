"""Every name the code takes from a TensorRT library is recorded, and asked for where one lacks it.

`tensorrt_names.json` says which names are in the bindings of TensorRT 10.3.0, 10.16.1.11,
11.4.0.106 and TensorRT-RTX 1.7.1.116: the texts that the compiled modules of NVIDIA's wheels
(`tensorrt-cu12-bindings`, `tensorrt-rtx`) register. `NAME(KEYWORD)` is a parameter's name.
"""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from gain_export.engine import compile as compile_module
from gain_runtime.sessions import tensorrt as tensorrt_session
from gain_runtime.sessions import tensorrt_library

VERSIONS = {"10.3", "10.16", "11.4", "rtx-1.7"}
NAMES: dict[str, list[str]] = json.loads(
    (Path(__file__).parent / "tensorrt_names.json").read_text(encoding="utf-8")
)
# What in each module is a library, or an object that a library made.
LIBRARY = {
    compile_module: {
        *("library", "builder", "config", "network", "parser", "profile", "tensor", "error"),
        "cache",
    },
    tensorrt_library: {"library", "severity"},
    tensorrt_session: {
        *("library", "runtime", "context", "settings", "cache", "native"),
        *("self._library", "self._runtime", "self._engine", "self._context", "self._cache"),
    },
}
# What is Python's, CuPy's or this project's, besides `self` and what is imported.
OWN = {
    compile_module: {
        *("file", "gpu", "log", "logger", "members", "name", "options", "shape", "stream"),
        "self._lengths",
    },
    tensorrt_library: {
        *("c", "cupy", "gpu", "kind", "log", "logger", "message", "runtime"),
        *("self.errors", "self.tail"),
    },
    tensorrt_session: {
        *("_NO_DRIVER", "artifact", "engine", "file", "loaded", "log", "logger", "manifest"),
        *("array", "cuda", "cupy", "inputs", "pixel_values", "ring", "size", "target"),
        *("self._artifact", "self._cupy", "self._device", "self._log", "self._memory"),
        "self.stream",
    },
}
MODULES = list(LIBRARY)
# A method of a class derived from the library's that only this project calls.
OWN_METHODS = {"first_error"}


class Reader(ast.NodeVisitor):
    """Walks a module as it runs and remembers what `hasattr` has proven so far.

    Proofs are of one name of one object, as `config.progress_monitor`; they hold where the code
    is reached only after `hasattr` has said yes.
    """

    def __init__(self, library: set[str], own: set[str]) -> None:
        self.library, self.own = library, own | {"self"}
        # A library's names in the code, and those that were not asked for on the way there.
        self.names: set[str] = set()
        self.bare: set[str] = set()
        self.strangers: set[str] = set()
        self.proven: frozenset[str] = frozenset()

    def is_library(self, node: ast.expr) -> bool:
        """Whether an expression is a library, a part of one, or what one of its calls returned."""
        if ast.unparse(node) in self.library:
            return True
        if isinstance(node, ast.Call):
            return self.is_library(node.func)
        return isinstance(node, ast.Attribute) and self.is_library(node.value)

    def use(self, name: str, holder: ast.expr | None = None) -> None:
        if not name.startswith("__"):
            self.names.add(name)
            if holder is None or f"{ast.unparse(holder)}.{name}" not in self.proven:
                self.bare.add(name)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if ast.unparse(node) not in self.library:
            if self.is_library(node.value):
                self.use(node.attr, node.value)
            elif is_object(node.value) and ast.unparse(node.value) not in self.own:
                self.strangers.add(ast.unparse(node.value))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = asked_for(node)
        if name is not None and self.is_library(node.args[0]):
            self.names.add(name)
        if isinstance(node.func, ast.Attribute) and self.is_library(node.func):
            for keyword in node.keywords:
                self.use(f"{node.func.attr}({keyword.arg})")
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if any(self.is_library(base) for base in node.bases):
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name not in OWN_METHODS:
                    self.use(item.name)
        self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self.own |= {(item.asname or item.name).split(".")[0] for item in node.names}

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.own |= {item.asname or item.name for item in node.names}

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        before = self.proven
        for value in node.values:
            self.visit(value)
            self.proven |= proofs(value, isinstance(node.op, ast.And))
        self.proven = before

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        before = self.proven
        for body, truth in ((node.body, True), (node.orelse, False)):
            self.proven = before | proofs(node.test, truth)
            for statement in body:
                self.visit(statement)
        self.proven = before
        for body, truth in ((node.body, True), (node.orelse, False)):
            if body and isinstance(body[-1], ast.Return | ast.Raise | ast.Continue):
                self.proven |= proofs(node.test, not truth)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        before = self.proven
        self.generic_visit(node)
        self.proven = before


def is_object(node: ast.expr) -> bool:
    """Whether an expression is a variable or an attribute of `self`."""
    if isinstance(node, ast.Attribute):
        return ast.unparse(node.value) == "self"
    return isinstance(node, ast.Name)


def asked_for(node: ast.expr) -> str | None:
    """The name that a call of `hasattr` asks for."""
    if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "hasattr"):
        return None
    name = node.args[1]
    assert isinstance(name, ast.Constant), "hasattr of a computed name cannot be checked"
    return str(name.value)


def proofs(test: ast.expr, truth: bool) -> frozenset[str]:
    """What exists if a condition is true, or false."""
    name = asked_for(test)
    if name is not None:
        assert isinstance(test, ast.Call)
        return frozenset({f"{ast.unparse(test.args[0])}.{name}"} if truth else ())
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return proofs(test.operand, not truth)
    if isinstance(test, ast.BoolOp):
        parts = [proofs(value, truth) for value in test.values]
        every = isinstance(test.op, ast.And) == truth
        return frozenset().union(*parts) if every else parts[0].intersection(*parts[1:])
    return frozenset()


def read(source: str, library: set[str], own: set[str]) -> Reader:
    reader = Reader(library, own)
    reader.visit(ast.parse(source))
    return reader


def read_modules() -> Iterator[tuple[ModuleType, Reader]]:
    for module in MODULES:
        yield module, read(inspect.getsource(module), LIBRARY[module], OWN[module])


def unrecorded(reader: Reader) -> set[str]:
    return reader.names - NAMES.keys()


def unasked(reader: Reader) -> set[str]:
    """Names that some library lacks and that are used without having been asked for."""
    return {name for name in reader.bare if VERSIONS - set(NAMES.get(name, VERSIONS))}


def test_every_name_of_a_library_is_recorded_and_asked_for_where_some_library_lacks_it():
    for module, reader in read_modules():
        assert (unrecorded(reader), unasked(reader)) == (set(), set()), module.__name__


def test_every_object_is_known_to_be_a_librarys_or_not():
    for module, reader in read_modules():
        assert reader.strangers == set(), f"put into LIBRARY or OWN of {module.__name__}"


def test_the_librarys_objects_are_still_in_the_code():
    for module, reader in read_modules():
        tree = ast.parse(inspect.getsource(module))
        assert LIBRARY[module] <= {ast.unparse(node) for node in ast.walk(tree)}
        assert len(reader.names) > 2


SET = "config.set_compute_capability(1)"


@pytest.mark.parametrize(
    ("source", "missing", "bare"),
    [
        ("trt.Builder(log).frobnicate()", "frobnicate", ""),
        ("hasattr(config, 'frobnicate')", "frobnicate", ""),
        ("config.set_flag(trt.BuilderFlag.TF32, frob=1)", "set_flag(frob)", ""),
        ("class M(trt.IProgressMonitor):\n def frob(self): ...", "frob", ""),
        ("config.set_flag(trt.BuilderFlag.FP16)", "", "FP16"),
        ("context.execute_async_v3(stream)", "", ""),
        (f"def a():\n hasattr(config, 'set_compute_capability')\n{SET}", "", "set"),
        (f"if hasattr(config, 'max_aux_streams'):\n {SET}", "", "set"),
        (f"if hasattr(trt, 'set_compute_capability'):\n {SET}", "", "set"),
        (f"if hasattr(config, 'set_compute_capability') or x:\n {SET}", "", "set"),
        (f"if hasattr(config, 'set_compute_capability'):\n {SET}", "", ""),
        (f"if x and hasattr(config, 'set_compute_capability'):\n {SET}", "", ""),
        (f"if not hasattr(config, 'set_compute_capability'):\n raise x\n{SET}", "", ""),
        (f"if not hasattr(config, 'set_compute_capability'):\n pass\n{SET}", "", "set"),
    ],
)
def test_the_check_itself(source, missing, bare):
    reader = read(source, {"trt", "config", "context"}, set())
    bare = "set_compute_capability" if bare == "set" else bare
    assert (unrecorded(reader), unasked(reader)) == ({missing} - {""}, {bare} - {""})


def test_an_unknown_object_is_found():
    source = "import os\nos.sep\nnew.thing()\nself.thing()\nself.old.a()\nself.new.a()"
    assert read(source, set(), {"self.old"}).strangers == {"new", "self.new"}


def test_table_is_true_of_the_installed_library():
    library = pytest.importorskip("tensorrt_rtx")
    if not importlib.metadata.version("tensorrt-rtx").startswith("1.7."):
        pytest.skip("the table describes TensorRT-RTX 1.7")
    owners = [library, *(getattr(library, name) for name in dir(library))]

    def is_there(name: str) -> bool:
        method, _, keyword = name.rstrip(")").partition("(")
        found = [getattr(owner, method) for owner in owners if hasattr(owner, method)]
        return any(keyword in (item.__doc__ or "") for item in found)

    there = {name for name in NAMES if is_there(name)}
    assert there == {name for name, versions in NAMES.items() if "rtx-1.7" in versions}
