"""Builds the CPU kernel and the handler of signals, in C. Everything else about the package is in pyproject.toml.

The compiler comes from the `ziglang` package, a build requirement, so a build needs neither a compiler on the machine
nor Python's headers. Without it, the system's compiler is used. If there is no compiler at all, hookcore is installed
without the extension and computes with NumPy; `hookcore doctor` and the run's events say so.

A release (`.ci/release`) builds for other machines too: WHEEL_FOR=aarch64 cross-compiles for Linux on that processor,
and WHEEL_FOR=any builds the wheel without the extension.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

FOLDER = "hookcore/observe"
LIMITED_API = "cp310"  # the oldest Python that loads the extension; newer ones load it too
OLDEST_GLIBC = (2, 17)
FLAGS = ("-std=gnu11", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fvisibility=hidden")
WHEEL_FOR = os.environ.get("WHEEL_FOR", "")
MACHINE = WHEEL_FOR or platform.machine()
HAS_ZIG = importlib.util.find_spec("ziglang") is not None
IS_GLIBC = sys.platform == "linux" and platform.libc_ver()[0] == "glibc" and sys.maxsize > 2**32
# The extension declares Python's stable interface itself, which free-threaded builds of Python don't have.
CAN_BUILD = sys.platform == "linux" and not sysconfig.get_config_var("Py_GIL_DISABLED") and WHEEL_FOR != "any"


def find_compiler() -> list[str]:
    """Return the command that compiles C."""
    if HAS_ZIG:
        target = ["-target", f"{MACHINE}-linux-gnu.{'.'.join(map(str, OLDEST_GLIBC))}"] if IS_GLIBC else []
        return [sys.executable, "-m", "ziglang", "cc", *target]
    if platform.machine() != MACHINE:
        raise OSError(f"only zig compiles for {MACHINE} here: install the ziglang package")
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return [found]
    raise OSError("no C compiler: install the ziglang package, or gcc")


class BuildKernel(build_ext):
    """Compiles with our own flags, because those of Python's build belong to another compiler."""

    def build_extension(self, ext: Extension) -> None:
        """Compile the file. A failure is reported and leaves the extension out."""
        target = Path(self.get_ext_fullpath(ext.name)).absolute()
        target.parent.mkdir(parents=True, exist_ok=True)
        cache = Path(self.build_temp).absolute() / "zig"  # leaves nothing in the user's home
        environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(cache), "ZIG_LOCAL_CACHE_DIR": str(cache)}
        try:
            command = [
                *find_compiler(),
                *FLAGS,
                "-shared",
                "-fPIC",
                "-g0",
                "-s",
                *ext.sources,
                "-o",
                str(target),
                *(f"-l{library}" for library in ext.libraries),
            ]
            subprocess.run(command, check=True, env=environment)
        except (OSError, subprocess.CalledProcessError) as error:
            raise self.missing(str(error)) from error

    @staticmethod
    def missing(reason: str) -> Exception:
        """Return the error that setuptools turns into a warning for an optional extension."""
        from setuptools.errors import CompileError

        return CompileError(reason)


class AddSite(build_py):
    """Adds the site of the documentation, which the dashboard shows, if `make site` has built it for this version."""

    def run(self) -> None:
        """Copy the code, and the site next to it."""
        super().run()
        site = Path("build/site", self.distribution.get_version())
        if site.is_dir() and not self.editable_mode:
            shutil.copytree(site, Path(self.build_lib, "hookcore_app/site"), dirs_exist_ok=True)


class TagWheel(bdist_wheel):
    """Tags the wheel with its requirements: any Python since 3.10 and, if zig built it, any glibc since 2.17."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tags of Python, its interface, and the platform."""
        python, abi, where = super().get_tag()
        if not CAN_BUILD:
            return "py3", "none", "any"
        if HAS_ZIG and IS_GLIBC:
            where = f"manylinux_{'_'.join(map(str, OLDEST_GLIBC))}_{MACHINE}.manylinux2014_{MACHINE}"
        return python, abi, where


KERNEL = Extension(
    "hookcore.observe._kernel",
    sources=[f"{FOLDER}/_kernel.c"],
    depends=[f"{FOLDER}/_{part}.h" for part in ("loops", "objects", "track", "hold", "sums", "calls")],
    libraries=["m"],
    py_limited_api=True,
    optional=True,
)

# Loaded with ctypes: it knows nothing of Python.
SIGNALS = Extension(
    "hookcore.delivery._signals",
    sources=["hookcore/delivery/_signals.c"],
    libraries=["rt"],
    py_limited_api=True,
    optional=True,
)

setup(
    ext_modules=[KERNEL, SIGNALS] if CAN_BUILD else [],
    cmdclass={"build_ext": BuildKernel, "build_py": AddSite, "bdist_wheel": TagWheel},
    options={"bdist_wheel": {"py_limited_api": LIMITED_API}},
)
