"""Prints the software bill of materials of the installed hookcore: CycloneDX 1.6, as JSON.

It lists what `pip install hookcore` has installed here, with who needs what, and the scripts of others that are part of
the pages. Run it with the Python of the environment.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from datetime import datetime, timezone
from importlib import metadata
from typing import Any
from urllib.parse import quote

from pip._vendor.packaging.requirements import Requirement

from hookcore_app import assets

NPM = {"plotly.js": "plotly.js", "dagre": "%40dagrejs/dagre"}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needs(name: str) -> list[str]:
    """Return what a package needs on this machine, without its extras."""
    wanted = [Requirement(each) for each in metadata.requires(name) or ()]
    return sorted({canonical(each.name) for each in wanted if not each.marker or each.marker.evaluate({"extra": ""})})


def component(name: str) -> dict[str, Any]:
    about = metadata.metadata(name)
    purl = f"pkg:pypi/{name}@{quote(about['Version'], safe='')}"
    found: dict[str, Any] = {"type": "library", "name": name, "version": about["Version"], "purl": purl}
    if "License-Expression" in about:
        found["licenses"] = [{"expression": about["License-Expression"]}]
    elif named := [each for each in about.get_all("Classifier") or () if each.startswith("License :: ")]:
        found["licenses"] = [{"license": {"name": each.rpartition(" :: ")[2]}} for each in named]
    return {**found, "bom-ref": purl}


def closure(root: str) -> dict[str, list[str]]:
    """Return each package that is needed, directly or not, with what it needs."""
    found: dict[str, list[str]] = {}
    waiting = [root]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = needs(name)
            waiting += found[name]
    return found


tree = closure("hookcore")
parts = {name: component(name) for name in sorted(tree)}
root = {**parts.pop("hookcore"), "type": "application"}
refs = {name: part["bom-ref"] for name, part in [*parts.items(), ("hookcore", root)]}
scripts = [
    {
        "type": "library",
        "name": each.name,
        "version": each.version,
        "licenses": [{"expression": each.license}],
        "bom-ref": (purl := f"pkg:npm/{NPM[each.name]}@{each.version}"),
        "purl": purl,
    }
    for each in assets.vendored()
]
depends = [{"ref": refs[name], "dependsOn": [refs[each] for each in wanted]} for name, wanted in sorted(tree.items())]
depends[[each["ref"] for each in depends].index(refs["hookcore"])]["dependsOn"] += [each["bom-ref"] for each in scripts]
moment = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), timezone.utc)
bill = {
    "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
    "bomFormat": "CycloneDX",
    "specVersion": "1.6",
    "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(depends))}",
    "version": 1,
    "metadata": {"timestamp": moment.strftime("%Y-%m-%dT%H:%M:%SZ"), "component": root},
    "components": [*parts.values(), *scripts],
    "dependencies": depends,
}
print(json.dumps(bill, indent=1))
