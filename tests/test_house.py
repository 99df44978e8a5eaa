"""Four storeys: imports go down, only through a module's `__init__`, and one file touches JAX's internals."""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
PACKAGE = TESTS.parent / "src" / "discreet"

STOREYS = ("privacy", "methods", "tabular", "interfaces")


def rooms_of(storey: str) -> list[str]:
    """The modules that a storey's page lists, in reading order."""
    page = (
        ast.get_docstring(ast.parse((PACKAGE / storey / "__init__.py").read_text(encoding="utf-8")))
        or ""
    )
    return re.findall(r"^    (\w+)  +\S", page, re.MULTILINE)


def inside(path: Path) -> tuple[str, ...]:
    """A file's place in its storey: ("random", "_key.py") for privacy/random/_key.py."""
    parts = path.relative_to(PACKAGE).parts
    return parts[1:] if parts[0] in STOREYS else parts


# The one rule: a file imports from its own module, and from modules before it in this list.
ORDER = [
    "_garbage",
    "_dp_accounting",
    "_jax",
    "_numpyro",
    "_validate",
    "storage",
    *(room for storey in STOREYS for room in rooms_of(storey)),
    "__main__",
]
# A checker that shares code with what it checks proves little.
VERIFY_MAY_IMPORT = {"random", "accounting", "sampling", "mechanisms"}
# Packages that must not read a table: what they make, or choose, would not be public. Of `tables`
# they may import the schema.
READS_NO_TABLE = {"models", "synthetic", "page", "planning"}
SCHEMA_FILES = {"_bounds", "_cells", "_persons", "_schema", "_schema_text"}  # that read nothing
OF_TABLES_IN_MEMORY = {"cells_of", "typed"}
EVERYBODY_MAY_IMPORT = {"_garbage", "_dp_accounting", "_jax", "_numpyro", "_validate"}
JAX_INTERNALS = ("jax._src", "jax.extend", "jax.interpreters")
# Of NumPyro, besides private names: what its documentation does not list, by import and by use.
NUMPYRO_INTERNALS = {
    "numpyro.contrib.control_flow.scan.scan_wrapper",
    "numpyro.distributions.util.scale_and_mask",
    "numpyro.infer.util.helpful_support_errors",
}
USES_OF_NUMPYRO_INTERNALS = re.compile(
    r"_NumPyroOptim|_PYRO_STACK|_setup_prototype|find_valid_initial_params"
)


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def room_of(path: Path) -> str:
    """The module that a file is of: "random" for privacy/random/_key.py, "plan" for privacy/plan.py."""
    return inside(path)[0].removesuffix(".py")


def imported_modules(path: Path) -> Iterator[tuple[str, int]]:
    """Full dotted names of all that a file imports, also inside functions, with their lines."""
    package = ["discreet", *path.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield f"{origin}.{alias.name}", node.lineno


def our_imports(path: Path) -> Iterator[tuple[list[str], int]]:
    """The names that a file imports from discreet, from their module on, with their lines."""
    for name, line in imported_modules(path):
        parts = name.split(".")
        if parts[0] == "discreet" and len(parts) > 1:
            yield parts[2:] if parts[1] in STOREYS and len(parts) > 2 else parts[1:], line


def test_the_table_of_contributing_has_the_modules_of_each_storey(repository: Path) -> None:
    page = (repository / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for storey in STOREYS:
        (row,) = re.findall(rf"^\| `{storey}` \| (.*?) \|", page, re.MULTILINE)
        assert set(re.findall(r"`(\w+)`", row)) == set(rooms_of(storey))


def test_each_page_lists_the_modules_of_its_storey() -> None:
    """Each storey's page lists what is in its folder, once, and has no code."""
    assert len(ORDER) == len(set(ORDER))
    for storey in STOREYS:
        there = {path.stem for path in (PACKAGE / storey).iterdir() if path.stem[:2] != "__"}
        assert set(rooms_of(storey)) == there, (
            f"discreet/{storey}/__init__.py lists other modules than there are"
        )
        assert (
            len(ast.parse((PACKAGE / storey / "__init__.py").read_text(encoding="utf-8")).body) == 1
        )


def test_imports_go_in_one_direction() -> None:
    wrong = []
    for path in sources():
        room = room_of(path)
        if room not in ORDER:  # the root and the pages
            continue
        before = VERIFY_MAY_IMPORT if room == "verify" else set(ORDER[: ORDER.index(room)])
        wrong += [
            f"{name_of(path)}:{line} imports discreet.{'.'.join(parts)}"
            for parts, line in our_imports(path)
            if parts[0] not in before | EVERYBODY_MAY_IMPORT | {room}
            and not (room == "cli" and parts == ["__version__"])
        ]
        # Through the root, whose names load on use, one may come to any module: the command line
        # does.
        wrong += [
            f"{name_of(path)}:{line} imports {name} through the root"
            for name, line in imported_modules(path)
            if room != "cli"
            and re.match(
                rf"discreet(?!\.({'|'.join(STOREYS)}|{'|'.join(ORDER[:6])})\b)(\.|$)", name
            )
        ]
    assert not wrong, "see the pages of the storeys:\n" + "\n".join(wrong)


def test_files_of_the_prover_import_in_reading_order() -> None:
    """Its page lists all its files, and each imports only from those before it: no circles, and one way to read them."""
    folder = PACKAGE / "privacy" / "verify"
    page = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    order = re.findall(r"^    ([a-z]*\.?_\w+)(?:  |$)", page, re.MULTILINE)
    files = {
        ".".join(path.relative_to(folder).with_suffix("").parts): path
        for path in folder.rglob("_[a-z]*.py")
    }
    assert set(order) == set(files)
    assert len(order) == len(set(order))
    wrong = [
        f"{name}:{line} imports {origin}"
        for name, path in files.items()
        for parts, line in our_imports(path)
        for origin in order[order.index(name) :]
        if parts[0] == "verify" and f"{'.'.join(parts[1:])}.".startswith(f"{origin}.")
    ]
    assert not wrong, "see the page of privacy/verify:\n" + "\n".join(wrong)


# Those who make a fit's steps one by one claim the noise of one step; the act alone claims a key,
# and debits.
CLAIM_STEPS = {"methods/inference/_dpsvi.py", "interfaces/compat/d3p/svi.py"}


def test_the_act_alone_claims_keys_and_debits() -> None:
    found = set()
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = (
                    node.func.attr
                    if isinstance(node.func, ast.Attribute)
                    else getattr(node.func, "id", "")
                )
                one_step = called == "claim" and len(node.args) > 1 and name_of(path) in CLAIM_STEPS
                if called in ("claim", "debit") and not one_step:
                    found.add((name_of(path), called))
    assert found == {("privacy/act.py", "claim"), ("privacy/act.py", "debit")}


def test_methods_refuse_traces_and_several_processes_in_one_place() -> None:
    """One of them did not refuse traces; a loop meets its other processes first."""
    lacking = set()
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = ast.unparse(node) if isinstance(node, ast.FunctionDef) else ""
            if "Act.on(" in text and not text.startswith("@one_release\n"):
                lacking.add((name_of(path), text.splitlines()[0]))
    assert not lacking


# A loop is many sums under one proof, and may run without it (`require_proof=False`), so it is no
# query.
PROVE = {"privacy/query.py", "methods/inference/_proof.py"}


def test_queries_and_loops_alone_are_proved() -> None:
    """All that `certify` is called by, under whatever name: the root's lazy names aside, nobody else imports it."""
    names = ["verify"], ["verify", "certify"], ["verify", "*"], ["certify"]
    found = {
        name_of(path)
        for path in sources()
        for parts, _ in our_imports(path)
        if room_of(path) != "__init__" and parts in names
    }
    assert found <= PROVE


def test_packages_import_each_other_through_init() -> None:
    """A package's private files are not imported from outside: its __init__ re-exports what is meant for others."""
    wrong = [
        f"{name_of(path)}:{line} imports discreet.{'.'.join(parts)}"
        for path in sources()
        for parts, line in our_imports(path)
        if parts[0] not in EVERYBODY_MAY_IMPORT | {room_of(path)}
        and any(part.startswith("_") and part[1:2] != "_" for part in parts[1:])
    ]
    assert not wrong, "\n".join(wrong)


def schema_names() -> set[str]:
    """Names that `discreet.tables` exports from files without a reader."""
    tree = ast.parse((PACKAGE / "tabular" / "tables" / "__init__.py").read_text(encoding="utf-8"))
    froms = [
        node
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("discreet.tabular.tables.")
    ]
    assert {str(node.module).split(".")[-1] for node in froms} == SCHEMA_FILES
    return {alias.name for node in froms for alias in node.names}


def test_what_makes_synthetic_data_imports_no_reader_of_tables() -> None:
    names = schema_names() | OF_TABLES_IN_MEMORY
    wrong = [
        f"{name_of(path)}:{line} imports discreet.{'.'.join(parts)}"
        for path in sources()
        if room_of(path) in READS_NO_TABLE
        for parts, line in our_imports(path)
        if parts[0] == "tables" and not (len(parts) == 2 and parts[1] in names)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_reader_of_tables_is_loaded_for_a_schema() -> None:
    """The same, of what Python loads: neither the readers nor pyarrow."""
    code = (
        "import sys, discreet as dp; "
        + "; ".join(f"dp.{name}" for name in ["tables", *sorted(READS_NO_TABLE)])
        + "; print(sorted(m for m in sys.modules if m == 'pyarrow' or m.startswith('discreet.tabular.tables.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(
        [f"discreet.tabular.tables.{file}" for file in sorted(SCHEMA_FILES)]
    )


def test_jax_internals_only_in_the_adapter() -> None:
    wrong = [
        f"{name_of(path)}:{line} imports {name}"
        for path in sources()
        if name_of(path) != "_jax.py"
        for name, line in imported_modules(path)
        if any(name == internal or name.startswith(internal + ".") for internal in JAX_INTERNALS)
    ]
    assert not wrong, "only discreet/_jax.py may: " + "\n".join(wrong)


def test_numpyro_internals_only_in_the_adapter() -> None:
    others = [path for path in sources() if name_of(path) != "_numpyro.py"]
    wrong = [
        f"{name_of(path)}:{line} imports {name}"
        for path in others
        for name, line in imported_modules(path)
        if name in NUMPYRO_INTERNALS or re.match(r"numpyro\b.*\._", name)
    ]
    for path in others:
        used = USES_OF_NUMPYRO_INTERNALS.findall(path.read_text(encoding="utf-8"))
        wrong += [f"{name_of(path)} uses {name}" for name in used]
    assert not wrong, "only discreet/_numpyro.py may: " + "\n".join(wrong)


def test_events_only_from_the_adapter() -> None:
    """dp_accounting's package imports most of SciPy. Accountants are imported where they are called."""
    wrong = [
        f"{name_of(path)}: {line}"
        for path in sources()
        if name_of(path) not in ("_dp_accounting.py", "interfaces/compat/d3p/dputil.py")
        for line in re.findall(
            r"^(?:from|import) dp_accounting\b.*", path.read_text(encoding="utf-8"), re.MULTILINE
        )
    ]
    assert not wrong, "only discreet/_dp_accounting.py may: " + "\n".join(wrong)


def test_models_run_in_one_thread_at_a_time() -> None:
    """NumPyro's list of open handlers is that of all threads: models run by `trace_of`, which holds the lock."""
    wrong = [
        name_of(path)
        for path in sources()
        if name_of(path) != "_numpyro.py"
        and re.search(
            r"^(?!\s*(>>>|\.\.\.)).*\.get_trace\(", path.read_text(encoding="utf-8"), re.MULTILINE
        )
    ]
    assert not wrong, "only discreet/_numpyro.py may call get_trace, use trace_of: " + ", ".join(
        wrong
    )


# Where a product rounds as JAX's global setting says, the bound of a sum is none, and a key hides
# two values with one noise.
WITH_PRODUCTS = ("privacy/", "methods/newton/", "methods/moments/")
PRODUCTS = {"dot", "einsum", "matmul", "tensordot", "vdot", "dot_general"}
OF_RELEASES = "posterior draws, from releases alone"
UNPINNED = {
    ("methods/newton/_far.py", "decided_by"): "NumPy's, of artificial records",
    ("methods/newton/_sampling.py", "_looked_at"): OF_RELEASES,
    ("methods/newton/_sampling.py", "_sweeps"): OF_RELEASES,
    ("methods/newton/_sampling.py", "draw"): OF_RELEASES,
}
"""Functions in files that compute with JAX whose products need no precision, and why."""


def products_of(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, int]]:
    """The outermost functions with a product that has no precision, with their lines; NumPy's by name are fine."""
    for node in ast.iter_child_nodes(tree):
        named = isinstance(node, ast.FunctionDef | ast.ClassDef) and not inside
        function = node.name if named else inside
        called = node.func if isinstance(node, ast.Call) else None
        name = getattr(called, "attr", getattr(called, "id", ""))
        host = isinstance(called, ast.Attribute) and ast.unparse(called.value) == "np"
        pinned = any(word.arg == "precision" for word in getattr(node, "keywords", ()))
        product = name in PRODUCTS or (called and ast.unparse(called).endswith(".inner"))
        if isinstance(getattr(node, "op", None), ast.MatMult) or (product and not (host or pinned)):
            yield function, node.lineno
        yield from products_of(node, function)


def test_products_of_records_and_keys_have_a_precision() -> None:
    wrong = []
    without = {place for place in UNPINNED if (PACKAGE / place[0]).is_file()}
    for path in sources():
        file = name_of(path)
        text = path.read_text(encoding="utf-8")
        on_host = not re.search(r"jax\.numpy|jax\.(lax|vmap|jit|grad)\b|\brun_once\b", text)
        if not file.startswith(WITH_PRODUCTS) or on_host:
            continue
        found = list(products_of(ast.parse(text)))
        without -= {(file, function) for function, _ in found}
        wrong += [f"{file}:{line}" for of, line in found if (file, of) not in UNPINNED]
    assert not wrong, "use _jax.exact_product: " + ", ".join(wrong)
    assert not without, f"these need no exception: {without}"


def test_every_package_is_known() -> None:
    rooms = {room_of(path) for path in sources()} - {"__init__", "__main__"} - EVERYBODY_MAY_IMPORT
    assert rooms <= set(ORDER), f"modules that no storey's page lists: {sorted(rooms - set(ORDER))}"
    assert not rooms & {"util", "utils", "common", "helpers", "misc"}


def test_files_in_a_package_are_private() -> None:
    # The modules of compat.d3p are d3p's: programs import them by these names.
    public = [
        name_of(path)
        for path in sources()
        if len(inside(path)) > 1 and room_of(path) != "compat" and not path.name.startswith("_")
    ]
    assert not public, f"name them _file.py and re-export from the package's __init__: {public}"


def test_the_page_of_a_package_names_each_of_its_files() -> None:
    """Lists of what to read, in which order, were incomplete in eight packages."""
    missing = []
    for package in sorted(PACKAGE.rglob("__init__.py")):
        page = ast.get_docstring(ast.parse(package.read_text(encoding="utf-8"))) or ""
        if package.parent == PACKAGE:
            continue
        names = [path.stem for path in package.parent.glob("*.py") if path != package]
        missing += [name_of(package.parent / x) for x in names if not re.search(rf"\b{x}\b", page)]
    assert not missing


def test_tests_mirror_the_packages() -> None:
    rooms = {room_of(path) for path in sources()} - {"__init__", "__main__"} - EVERYBODY_MAY_IMPORT
    folders = {
        path.name for path in TESTS.iterdir() if path.is_dir() and any(path.glob("test_*.py"))
    }
    single = {path.stem.removeprefix("test_") for path in TESTS.glob("test_*.py")}
    assert rooms <= folders | single, f"packages without tests: {sorted(rooms - folders - single)}"
    strange = folders - set(ORDER) - {"examples", "benchmarks", "docs", "strangers"}
    assert not strange, f"test folders that mirror no package: {sorted(strange)}"


def test_importing_discreet_leaves_readers_and_command_line_alone() -> None:
    """Using the public names loads no reader, plot or shell that NumPyro does not load itself."""
    heavy = ["pyarrow", "sklearn", "pandas", "matplotlib", "typer", "rich", "flax", "sympy"]
    code = (
        "import sys, numpyro; before = set(sys.modules); from discreet import *; "
        f"print(set({heavy}) & (set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_importing_discreet_costs_less_than_numpyro() -> None:
    """Names load on use: the import by itself brings in neither JAX nor SciPy."""
    code = "import sys, discreet; print({'jax', 'scipy', 'dp_accounting'} & {name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_ledgers_and_statements_are_read_without_jax() -> None:
    code = "import sys, discreet as dp; dp.Ledger, dp.Statement, dp.accounting; print({'jax', 'scipy.stats'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_file_is_read_without_pandas(tmp_path: Path) -> None:
    """pyarrow imports it to convert arrays, which takes longer than to read a small table."""
    file = tmp_path / "table.csv"
    file.write_text("age,smoker\n30,yes\n41,no\n")
    code = (
        "import sys, discreet as dp; schema = dp.tables.schema_from_bounds('age=0:100,smoker=no|yes'); "
        f"table = dp.tables.read_table({str(file)!r}, schema); "
        "print(*dp.tables.encode(table, schema).x.shape, 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "2", "False"]


@pytest.mark.parametrize("first", ["fit", "page"])
def test_events_are_imported_without_accountants(first: str) -> None:
    """Of SciPy what NumPyro imports, too; and dp_accounting, imported later, has the same events."""
    code = (
        f"import sys, discreet as dp; dp.{first}\n"
        "print({'dp_accounting', 'scipy.signal', 'scipy.stats'} & set(sys.modules))\n"
        "import dp_accounting\n"
        "from discreet.privacy import accounting, plan\n"
        "print(dp_accounting.NeighboringRelation is accounting.Relation)\n"
        "print(dp_accounting.dp_event.ComposedDpEvent is dp_accounting.ComposedDpEvent is plan.ComposedDpEvent)\n"
        "print(dp_accounting.pld.PLDAccountant().compose(plan.GAUSSIAN.event(3.0)).get_epsilon(1e-5) < 2)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["set()", "True", "True", "True"]


@pytest.mark.parametrize(
    ("place", "text", "check"),
    [
        ("privacy/random/_key.py", "from discreet import random", test_imports_go_in_one_direction),
        (
            "privacy/plan.py",
            "from discreet.methods.inference import DPSVI",
            test_imports_go_in_one_direction,
        ),
        ("methods/moments.py", "from discreet import tabular", test_imports_go_in_one_direction),
        (
            "tabular/models/_a.py",
            "from discreet.tabular.scores import compare",
            test_imports_go_in_one_direction,
        ),
        (
            "privacy/verify/_a.py",
            "from discreet.privacy.gradients import x",
            test_imports_go_in_one_direction,
        ),
        (
            "privacy/random/_key.py",
            "from discreet.privacy.plan import PrivacyPlan",
            test_imports_go_in_one_direction,
        ),
        (
            "privacy/random/_key.py",
            "from ..plan import PrivacyPlan",
            test_imports_go_in_one_direction,
        ),
        (
            "privacy/random/_key.py",
            "def f():\n    from .. import plan",
            test_imports_go_in_one_direction,
        ),
        (
            "privacy/random/_key.py",
            "import discreet.interfaces.cli",
            test_imports_go_in_one_direction,
        ),
        ("privacy/random/_key.py", "import discreet as dp", test_imports_go_in_one_direction),
        (
            "privacy/plan/_a.py",
            "from discreet.privacy.sampling._poisson import x",
            test_packages_import_each_other_through_init,
        ),
        (
            "privacy/plan/_a.py",
            "from discreet.privacy.sampling import _poisson",
            test_packages_import_each_other_through_init,
        ),
        (
            "privacy/random/_key.py",
            "from jax.interpreters import mlir",
            test_jax_internals_only_in_the_adapter,
        ),
        ("privacy/random/_key.py", "import jax._src.prng", test_jax_internals_only_in_the_adapter),
        (
            "privacy/random/_key.py",
            "from jax import extend",
            test_jax_internals_only_in_the_adapter,
        ),
        (
            "methods/inference/_a.py",
            "from numpyro.optim import _NumPyroOptim",
            test_numpyro_internals_only_in_the_adapter,
        ),
        (
            "methods/inference/_a.py",
            "from numpyro.primitives import Messenger, _x",
            test_numpyro_internals_only_in_the_adapter,
        ),
        (
            "methods/inference/_a.py",
            "guide._setup_prototype(x)",
            test_numpyro_internals_only_in_the_adapter,
        ),
        (
            "methods/inference/_a.py",
            "x = handlers.trace(model).get_trace(x)",
            test_models_run_in_one_thread_at_a_time,
        ),
        (
            "tabular/synthetic/_draw.py",
            "from discreet.tabular.tables import Schema, encode",
            test_what_makes_synthetic_data_imports_no_reader_of_tables,
        ),
        (
            "tabular/synthetic/_draw.py",
            "from discreet import tables",
            test_what_makes_synthetic_data_imports_no_reader_of_tables,
        ),
        *(
            (
                place,
                f"import jax.numpy as jnp\n{text}",
                test_products_of_records_and_keys_have_a_precision,
            )
            for place in (
                "privacy/random/_key.py",
                "methods/newton/_sums.py",
                "methods/moments/_a.py",
            )
            for text in (
                "def f(x):\n    return x.T @ x",
                "f = lambda x: x.dot(x)",
                "def f(x):\n    x @= x",
                "def f(x):\n    return jnp.inner(x, x)",
                "def f(x):\n    return jnp.einsum('ij,ik->jk', x, x)",
                "from jax.numpy import matmul\n\nmatmul(1, 2)",
            )
        ),
        ("privacy/random/key.py", "", test_files_in_a_package_are_private),
        (
            "tabular/scores/_a.py",
            "from discreet.privacy.verify import certify as prove",
            test_queries_and_loops_alone_are_proved,
        ),
        (
            "tabular/scores/_a.py",
            "from discreet import verify",
            test_queries_and_loops_alone_are_proved,
        ),
    ],
)
def test_planted_faults_are_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, text: str, check
) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text(text)
    (tmp_path / "tabular" / "tables").mkdir(parents=True)
    shutil.copy(PACKAGE / "tabular" / "tables" / "__init__.py", tmp_path / "tabular" / "tables")
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    with pytest.raises(AssertionError):
        check()


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("_bounds.py", "from discreet.privacy.verify._scan import x"),
        ("recognize/_slices.py", "def f():\n    from discreet.privacy.verify import _devices"),
        ("_new.py", ""),
    ],
)
def test_a_circle_in_the_prover_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str
) -> None:
    folder = shutil.copytree(PACKAGE / "privacy" / "verify", tmp_path / "privacy" / "verify")
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    test_files_of_the_prover_import_in_reading_order()
    with (folder / file).open("a", encoding="utf-8") as kept:
        kept.write(f"\n{text}\n")
    with pytest.raises(AssertionError):
        test_files_of_the_prover_import_in_reading_order()


def test_costs_are_of_tests_that_there_are(repository: Path) -> None:
    """A test that has another name by now would count as quick, whatever it takes."""
    lines = (repository / "tests" / "costs.tsv").read_text(encoding="utf-8").splitlines()
    functions = {tuple(line.split("\t")[1].partition("[")[0].split("::")[::-1]) for line in lines}
    for function, *_, file in functions:
        text = (repository / file).read_text(encoding="utf-8")
        assert re.search(rf"(def|class) {function.rpartition('.')[2]}\b", text), (
            f"{file} has no {function} any more"
        )
