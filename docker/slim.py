"""Removes from an environment what a server never loads, and compiles the rest: `python slim.py`.

It removes whole, named parts: Arrow's network file systems, headers, tests, and packaging tools. The modules that a
server loads are compiled by loading them, because compiling everything would double the image.
"""

import importlib
import shutil
import subprocess
import sysconfig
from pathlib import Path

UNUSED = {
    # Arrow beyond local files: its servers, clouds, and headers, and copies of a library under a second name.
    "pyarrow": [
        "*flight*",
        "*s3*",
        "*gcs*",
        "*azure*",
        "*hdfs*",
        "*orc*",
        "*cpp_tests*",
        "libarrow_python*.so",
        "libarrow_python*.so.*.*.*",
        "include",
        "src",
        "tests",
        "*.pxi",
        "*.pxd",
        "*.pyx",
    ],
    # Plotly's own script, of which the pages have a smaller build, and its parts for notebooks.
    "plotly": ["package_data/*.js", "package_data/datasets", "labextension"],
    "numpy": ["tests", "*/tests", "f2py", "distutils", "_core/include", "*.pyi", "*/*.pyi", "_core/lib", "random/lib"],
    "zstandard": ["_cffi*", "backend_cffi.py"],
    ".": ["pip", "pip-*", "setuptools", "setuptools-*", "pkg_resources", "_distutils_hack", "distutils-precedence.pth"],
}
# Wheels with debug symbols. Not every library survives their removal: NumPy's libraries were patched for their wheel,
# and could no longer be loaded.
STRIPPED = ["pyarrow", "zstandard"]
LOADED = [
    "hookcore_app.cli",
    "hookcore_app.serving.server",
    "hookcore_app.main",
    "hookcore.delivery.archive",
    "plotly.graph_objects",
    "pyarrow.parquet",
    "pyarrow.csv",
    "pyarrow.compute",
]


def remove_unused(packages: Path) -> None:
    """Remove the listed parts. Stop at a pattern without a match, because the package has changed then."""
    for package, patterns in UNUSED.items():
        for pattern in patterns:
            found = list((packages / package).glob(pattern))
            if not found:
                raise SystemExit(f"nothing in {package} fits {pattern!r}: take it out of docker/slim.py")
            for path in found:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()


def strip(packages: Path) -> None:
    """Remove debug symbols from compiled libraries; needs binutils."""
    libraries = [path for package in STRIPPED for path in (packages / package).glob("*.so*")]
    subprocess.run(["strip", "--strip-unneeded", *libraries], check=True)


if __name__ == "__main__":
    installed = Path(sysconfig.get_path("purelib"))
    remove_unused(installed)
    strip(installed)
    for module in LOADED:
        importlib.import_module(module)
