"""Prints the dependencies in pyproject.toml, except the named packages: `python requirements.py torch`."""

import re
import sys

try:
    import tomllib
except ModuleNotFoundError:  # before Python 3.11
    import tomli as tomllib

with open("pyproject.toml", "rb") as file:
    needed = tomllib.load(file)["project"]["dependencies"]
for requirement in needed:
    if re.match(r"[\w.-]+", requirement)[0].lower() not in sys.argv[1:]:
        print(requirement)
