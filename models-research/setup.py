"""The wheel of the research models: their folders lie beside those of the other package, in ../models."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SOURCE = Path(__file__).parent.parent / "models" / "src" / "anyformer_models"
RESTRICTED = re.compile("LicenseRef-|-NC|-ND")  # as anyformer.pretrained.is_restricted


class BuildWithModels(build_py):
    """Copy the table and the folders of the research models into the package."""

    def run(self) -> None:
        super().run()
        table = SOURCE / "models.json"
        if not table.is_file():
            raise SystemExit(f"{table} is missing; build this package in a checkout of anyformer.")
        target = Path(self.build_lib) / "anyformer_models_research"
        shutil.copyfile(table, target / table.name)
        for row in json.loads(table.read_text(encoding="utf-8"))["models"]:
            if RESTRICTED.search(row["license"]):
                shutil.copytree(SOURCE / row["name"], target / row["name"], dirs_exist_ok=True)


setup(cmdclass={"build_py": BuildWithModels})
