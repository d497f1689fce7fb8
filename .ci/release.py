"""Builds everything that a release consists of, checks it, and uploads nothing: `make release VERSION=0.1.0`.

It works on a clone of the last commit, so what isn't committed can't get into a release. The results are in `dist/`:
the source, a wheel for each processor, one for all other machines, the bill of materials, the notes, and the hashes.
It needs git and Python, and downloads packages with pip. The images need more; if they can't be built here, it says so.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
TOOLS = ("auditwheel==6.8.2", "build==1.6.1", "cyclonedx-python-lib[json-validation]==11.12.0", "twine==7.0.0")
BUILDERS = ("setuptools", "ziglang")
MACHINES = ("x86_64", "aarch64")
OLDEST = "manylinux_2_17"  # the oldest glibc that the wheels promise; auditwheel compares it with their symbols
PORTABLE = "any"
EXTENSIONS = ("hookcore/observe/_kernel.abi3.so", "hookcore/delivery/_signals.abi3.so")
FOR_IMAGES = ("buildah", "podman", "runc", "mmdebstrap")
# What a wheel contains of app/ besides code: the same as package-data in pyproject.toml, told apart to compare both.
PAGES = re.compile(r"app/(skills/.+|static/.+|templates/.+|py\.typed|api/examples\.json)")
# The commands of the README run as they are. Only what never ends by itself is given an end.
PRELUDE = """
set -euo pipefail
pip() { echo "(installed from the wheel: pip $*)"; }
hookcore() {
    case $1 in
        demo) command hookcore "$@" --steps 160 --most-per-s 0 ;;
        *) command hookcore "$@" ;;
    esac
}
"""
TRAINING = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(300):
    inputs = torch.randn(16, 4)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True)).backward()
    optimizer.step()
"""


def main(version: str) -> None:
    """Build and check a release. The first thing that is wrong ends it."""
    DIST.mkdir(exist_ok=True)
    for old in DIST.iterdir():
        old.unlink()
    with tempfile.TemporaryDirectory(prefix="hookcore-release-") as folder:
        work = Path(folder)
        source = clone(work / "source")
        check_version(source, version)
        tools = make_environment(work / "tools", source, *TOOLS, *BUILDERS)
        site = build_site(source, work)
        wheels = build(tools, source, site, work)
        say("contents")
        for wheel in wheels:
            check_contents(wheel, source, site)
        check_symbols(tools, wheels)
        call(tools / "twine", "check", "--strict", *wheels, *DIST.glob("*.tar.gz"))
        native = next(wheel for wheel in wheels if os.uname().machine in wheel.name)
        fresh = make_environment(work / "fresh", source, "torch==2.13.0", f"{native}[demo]")
        say("the README's quick start, with the wheel for this machine")
        quick_start(fresh, source, work / "native")
        write_materials(tools, fresh, source, version)
        say("the README's quick start, with the wheel for all other machines")
        (portable,) = (wheel for wheel in wheels if wheel.name.endswith("-any.whl"))
        call(fresh / "python", "-m", "pip", "install", "-qq", "--force-reinstall", "--no-deps", portable)
        quick_start(fresh, source, work / "portable")
        images = prove_images(source, fresh)
    write_hashes()
    say("dist/")
    for path in sorted(DIST.iterdir()):
        print(f"{path.stat().st_size:>10,} {path.name}")
    print(f"images: {images}\nwheel for aarch64: built and its symbols checked, not run\nNothing was uploaded.")


def say(what: str) -> None:
    print(f"== {what}", flush=True)


def call(*command: str | Path, folder: Path = ROOT, **variables: str) -> str:
    """Run a command, and return its output. If it fails, show the output, and end."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}\nfailed with {done.returncode}: {' '.join(map(str, command))}")
    return done.stdout


def need(holds: object, problem: str) -> None:
    """End with a problem unless something holds."""
    if not holds:
        raise SystemExit(problem)


def clone(source: Path) -> Path:
    changed = call("git", "status", "--porcelain")
    need(not changed, f"{changed}Commit or remove these first: a release consists of what is committed.")
    call("git", "clone", "--quiet", "--no-hardlinks", ROOT, source)
    say(f"commit {call('git', 'rev-parse', '--short', 'HEAD', folder=source).strip()}")
    os.environ["SOURCE_DATE_EPOCH"] = call("git", "log", "-1", "--format=%ct", folder=source).strip()
    return source


def check_version(source: Path, version: str) -> None:
    """Compare the version with the only place that states it, and cut its section out of the changelog."""
    code = ast.parse((source / "hookcore/__init__.py").read_text())
    assigned = {ast.unparse(each.targets[0]): each.value for each in code.body if isinstance(each, ast.Assign)}
    stated = ast.literal_eval(assigned["__version__"])
    need(version == stated, f"VERSION={version!r}, but hookcore/__init__.py states {stated!r}: they must be the same.")
    sections = re.split(r"^## (\S+).*\n", (source / "CHANGELOG.md").read_text(), flags=re.M)
    texts = dict(zip(sections[1::2], sections[2::2], strict=True))
    need(texts.get(version, "").strip(), f"CHANGELOG.md says nothing under '## {version}': write what is new.")
    (DIST / f"hookcore-{version}-notes.md").write_text(texts[version].strip() + "\n")
    if waiting := texts.get("Unreleased", "").strip():
        print(
            f"note: the changelog's section Unreleased isn't part of this release, and has {waiting.count('- ')} lines"
        )


def make_environment(folder: Path, source: Path, *wanted: str) -> Path:
    """Install into a new environment, each package with all before it in place, and return its folder of commands."""
    say(f"environment {folder.name}: {' '.join(Path(each).name for each in wanted)}")
    venv.create(folder, with_pip=True)
    pip = [folder / "bin/python", "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    # torch first and alone, as in the Makefile: so no other package chooses another build of it.
    for group in (wanted[:1], wanted[1:]):
        call(*pip, "-c", source / "constraints.txt", *group)
    return folder / "bin"


def build_site(source: Path, work: Path) -> Path:
    """Build the site of the documentation, from a copy of the source, and return its folder."""
    shutil.copytree(source, work / "documented")
    binaries = make_environment(work / "documenting", source, "torch==2.13.0", f"{work / 'documented'}[docs]")
    say("the site of the documentation")
    print(call(binaries / "python", source / ".ci/website.py", work, PYTHONPATH=str(source)).strip())
    return work / "site"


def build(tools: Path, source: Path, site: Path, work: Path) -> list[Path]:
    """Build the source, and from it the wheels, so that it is complete."""
    say("sdist, and the wheels from it")
    command = [tools / "python", "-m", "build", "--no-isolation", "--outdir", DIST]
    call(*command, "--sdist", folder=source)
    (packed,) = DIST.glob("*.tar.gz")
    check_source(packed, source)
    for target in (*MACHINES, PORTABLE):
        with tarfile.open(packed) as archive:
            archive.extractall(work / target, filter="data")
        (unpacked,) = (work / target).iterdir()
        shutil.copytree(site, unpacked / "build/site")
        call(*command, "--wheel", folder=unpacked, WHEEL_FOR=target)
    found = sorted(DIST.glob("*.whl"))
    need(len(found) == len(MACHINES) + 1, f"expected {len(MACHINES) + 1} wheels, got {found}")
    return found


def tracked(source: Path) -> list[str]:
    return call("git", "ls-files", "hookcore", "app", folder=source).splitlines()


def check_source(packed: Path, source: Path) -> None:
    """Check that the source has all files of both packages, and little else."""
    with tarfile.open(packed) as archive:
        files = {each.name.partition("/")[2] for each in archive.getmembers() if each.isfile()}
    inside = {name for name in files if name.startswith(("hookcore/", "app/"))}
    compare(packed.name, inside, tracked(source))
    others = {name for name in files - inside if not name.startswith("hookcore.egg-info/")}
    compare(packed.name, others, ["LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg", "setup.py"])


def check_contents(wheel: Path, source: Path, site: Path) -> None:
    """Check that a wheel has the code, the pages, the documentation, and its extension, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        files = set(archive.namelist())
    stem = "-".join(wheel.name.split("-")[:2]) + ".dist-info"
    code = [name for name in tracked(source) if name.endswith(".py") or PAGES.fullmatch(name)]
    wanted = [re.sub("^app/", "hookcore_app/", name) for name in code] + ["hookcore/py.typed"]
    wanted += [] if wheel.name.endswith("-any.whl") else EXTENSIONS
    (documentation,) = (each for each in site.iterdir() if each.is_dir())
    shown = (each.relative_to(documentation) for each in documentation.rglob("*") if each.is_file())
    wanted += [f"hookcore_app/site/{each}" for each in shown]
    about = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt", "licenses/LICENSE")
    compare(wheel.name, files, [*wanted, *(f"{stem}/{name}" for name in about)])
    print(f"{len(files)} files in {wheel.name}")


def compare(name: str, files: set[str], wanted: Iterable[str]) -> None:
    missing, stray = sorted(set(wanted) - files), sorted(files - set(wanted))
    need(not missing and not stray, f"{name} lacks {missing}, and has besides: {stray}")


def check_symbols(tools: Path, wheels: Sequence[Path]) -> None:
    """Check that the extensions need no newer C library than the wheels' names promise, and no other library."""
    for wheel in wheels:
        if not wheel.name.endswith("-any.whl"):
            said = " ".join(call(tools / "auditwheel", "show", wheel).split())
            (machine,) = (each for each in MACHINES if each in wheel.name)
            need(f'platform tag: "{OLDEST}_{machine}"' in said, said)
            print(f"{OLDEST}_{machine}: " + ", ".join(sorted(set(re.findall(r"GLIBC_[\d.]+", said)))))


def quick_start(binaries: Path, source: Path, folder: Path) -> None:
    """Do what the README says under "Quick start", in a folder with a training and with a home of its own."""
    section = (source / "README.md").read_text().partition("\n## Quick start\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```", section, re.M | re.S)
    need({"sh", "python"} == {language for language, _ in blocks}, "the README's quick start has lost its code")
    folder.mkdir()
    (folder / "train.py").write_text(TRAINING)
    (folder / "block.py").write_text("\n".join(text for language, text in blocks if language == "python"))
    variables = {
        "HOOKCORE_HOME": str(folder / "home"),
        "HOOKCORE_PORT": "0",
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "PYTHONPATH": "",
    }
    try:
        for text in (text for language, text in blocks if language == "sh"):
            print(indented(call("bash", "-c", PRELUDE + text, folder=folder, **variables)))
            if "--trouble nan" in text:
                said = call("bash", "-c", "! hookcore check 2>&1", folder=folder, **variables)
                need("NaN" in said, f"hookcore check of the demo that fails: {said}")
                print(indented(said))
        call(binaries / "python", "block.py", folder=folder, **variables)
    finally:
        call(binaries / "hookcore", "stop", folder=folder, **variables)


def indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip().splitlines())


def write_materials(tools: Path, fresh: Path, source: Path, version: str) -> None:
    """Write the bill of materials, and check it against the standard's schema."""
    said = call(fresh / "python", source / ".ci/materials.py")
    materials = json.loads(said)
    (DIST / f"hookcore-{version}.cdx.json").write_text(said)
    check = (
        "import sys\nfrom cyclonedx.schema import SchemaVersion\n"
        "from cyclonedx.validation.json import JsonStrictValidator\n"
        "sys.exit(str(JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read()) or '') or None)"
    )
    done = subprocess.run([tools / "python", "-c", check], input=said, text=True, stderr=subprocess.PIPE, check=False)
    need(done.returncode == 0, f"the bill of materials is invalid: {done.stderr}")
    say(f"bill of materials: {len(materials['components'])} components")


def prove_images(source: Path, fresh: Path) -> str:
    """Build both images and run them, if this machine can. Return what was done."""
    missing = [tool for tool in FOR_IMAGES if not shutil.which(tool)]
    if missing or os.getuid():
        lacking = f"{', '.join(missing)} not installed" if missing else "needs root"
        return f"NOT BUILT ({lacking}); run this as root on Debian, with {', '.join(FOR_IMAGES)}"
    say("images")
    (source / ".venv").symlink_to(fresh.parent)
    print(call("docker/prove.sh", "training", folder=source))
    return "dashboard and training built and run"


def write_hashes() -> None:
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(DIST.iterdir())]
    (DIST / "SHA256SUMS").write_text("".join(lines))


if __name__ == "__main__":
    need(len(sys.argv) == 2 and sys.argv[1], "usage: make release VERSION=0.1.0")
    main(sys.argv[1])
