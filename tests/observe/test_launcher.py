"""Triton's own launcher, in C, linked to a driver that only notes launches: what reaches the driver, both ways.

The driver is loaded into a process of its own, because it would be the driver of all later tests, too.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import torch

ROOT: Final = Path(__file__).parents[2]
STREAM: Final = 77
SOURCE: Final = r"""
#include <string.h>
#include <stdint.h>
#include "cuda.h"
struct launch { uint64_t function, stream, grid, threads, shared, attributes, values[16]; } launches[64];
int many, asked, sizes[16];
static uint64_t functions;
CUresult cuDriverGetVersion(int *v) { *v = 13000; return 0; }
CUresult cuGetErrorString(CUresult r, const char **s) { *s = "an error"; return 0; }
CUresult cuCtxGetCurrent(CUcontext *c) { *c = (CUcontext)1; return 0; }
CUresult cuCtxSetCurrent(CUcontext c) { return 0; }
CUresult cuCtxGetLimit(size_t *v, CUlimit l) { *v = 0; return 0; }
CUresult cuCtxSetLimit(CUlimit l, size_t v) { return 0; }
CUresult cuDeviceGet(CUdevice *d, int i) { *d = i; return 0; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) { *c = (CUcontext)1; return 0; }
CUresult cuDeviceGetAttribute(int *v, CUdevice_attribute a, CUdevice d) { *v = 232448; return 0; }
CUresult cuModuleLoadData(CUmodule *m, const void *d) { *m = (CUmodule)1; return 0; }
CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *n) { *f = (CUfunction)(++functions); return 0; }
CUresult cuFuncGetAttribute(int *v, CUfunction_attribute a, CUfunction f) { *v = 1024; return 0; }
CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute a, int v) { return 0; }
CUresult cuFuncSetCacheConfig(CUfunction f, CUfunc_cache c) { return 0; }
CUresult cuPointerGetAttribute(void *found, CUpointer_attribute a, CUdeviceptr p) {
    asked++;
    *(CUdeviceptr *)found = p;
    return 0;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **values, void **extra) {
    struct launch *now = &launches[many++ % 64];
    memset(now, 0, sizeof *now);
    now->function = (uint64_t)f;
    now->stream = (uint64_t)c->hStream;
    now->grid = ((uint64_t)c->gridDimX << 32) + c->gridDimY * c->gridDimZ;
    now->threads = ((uint64_t)c->blockDimX << 32) + c->blockDimY * c->blockDimZ;
    now->shared = c->sharedMemBytes;
    now->attributes = c->numAttrs;
    for (int i = 0; i < 16 && sizes[i]; i++) memcpy(&now->values[i], values[i], sizes[i]);
    return 0;
}
"""


@pytest.mark.slow
@pytest.mark.rota
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing")
def test_the_driver_gets_the_same_from_a_repeated_launch_as_from_triton(tmp_path: Path) -> None:
    import triton

    compiler = shutil.which("gcc") or shutil.which("clang")
    assert compiler, "Triton needs gcc or clang, too"
    (tmp_path / "driver.c").write_text(SOURCE)
    headers, library = Path(triton.__file__).parent / "backends/nvidia/include", tmp_path / "libcuda.so.1"
    build = [compiler, "-shared", "-fPIC", "-w", f"-I{headers}", str(tmp_path / "driver.c"), "-o", str(library)]
    subprocess.run([*build, f"-Wl,-soname,{library.name}"], check=True)
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(tmp_path),
        "TRITON_LIBCUDA_PATH": str(tmp_path),
        "TRITON_CACHE_DIR": str(tmp_path / "cache"),
    }
    command = [sys.executable, "-m", "tests.observe.test_launcher", str(library)]
    run = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


class Launches:
    """What the driver has noted."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        self._many = ctypes.c_int.in_dll(self._library, "many")
        self._asked = ctypes.c_int.in_dll(self._library, "asked")
        self._all = (ctypes.c_uint64 * 22 * 64).in_dll(self._library, "launches")

    def of(self, work: Any, sizes: tuple[int, ...]) -> tuple[list[int], int]:
        """Return the launch that this work makes, and how often it asks about an address."""
        (ctypes.c_int * 16).in_dll(self._library, "sizes")[:] = [*sizes, *[0] * (16 - len(sizes))]
        self._many.value = self._asked.value = 0
        work()
        assert self._many.value == 1
        return list(self._all[0]), self._asked.value


def main(library: str) -> None:
    """Launch each kernel by Triton and again, with and without a former launch of its kind."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.driver import CudaDriver

    from hookcore.observe import layout, triton_kernel
    from hookcore.observe.device import DeviceArena, Kernel

    class Driver(CudaDriver):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.get_current_device = lambda: 0
            self.get_current_stream = lambda device: STREAM

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", 90, 32)

    launches = Launches(library)
    triton.runtime.driver.set_active(Driver())
    arena = DeviceArena(torch.device("cpu"), 1000, 65_536)
    arena.begin_step(65_536)
    arena.kernel = Kernel(triton_kernel.add, triton_kernel.merge, 264, triton_kernel.add_all)
    one, all_, merge = (
        (8, 4, 8, 8, 4, 4, 8, 8),
        (8, 4, 4, 8, 8),
        (8, 8, 8, 8),
    )  # of arguments, and of two that Triton adds
    for dtype, start in ((torch.float32, 0), (torch.float32, 1), (torch.bool, 0)):
        tensors = [torch.zeros(number + start, dtype=dtype)[start:] for number in (5000, 35_003, 1, 16)]
        found = []
        for known in (False, True):  # by Triton each; then as the last of them was launched
            for tensor in tensors:
                if not known:
                    triton_kernel.AGAIN.clear()
                launch, asked = launches.of(lambda tensor=tensor: arena.observe(tensor, 3), one)
                assert launch[1] == STREAM
                assert launch[6:8] == [tensor.data_ptr(), tensor.numel()]
                assert asked == (0 if known else 3)
                found.append(launch)
        assert found[:4] == found[4:]
    several = [(torch.zeros(number), number) for number in range(1, 40)]
    first, again = (launches.of(lambda: arena.observe_all(several), all_)[0] for _ in range(2))
    assert first[:6] + first[7:] == again[:6] + again[7:]  # the table is elsewhere
    assert first[7] == len(several)
    rows, merged = torch.zeros(5, 264, layout.CELLS).double(), torch.zeros(5, layout.CELLS).double()
    first, again = (launches.of(lambda: triton_kernel.merge(rows, merged), merge)[0] for _ in range(2))
    assert first == again
    assert first[6:8] == [rows.data_ptr(), merged.data_ptr()]


if __name__ == "__main__":
    main(sys.argv[1])
