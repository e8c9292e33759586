# SPDX-License-Identifier: MIT
"""The recipe for conda-forge has the form of its format, and says what the project says of itself."""
import os
import pathlib
import re
import tomllib

import suite
from installed import SOURCE, VERSION, Case

try:
    import yaml
except ImportError:
    yaml = None

# What scripts/install-deps has for a build, as conda-forge calls it. Its compiler has a form of its own.
NAMES = {"g++": "${{ compiler('cxx') }}", "cmake": "cmake", "ninja-build": "ninja", "pkg-config": "pkg-config",
         "libboost-dev": "libboost-headers", "libfmt-dev": "fmt", "libsimdjson-dev": "simdjson",
         "libcli11-dev": "cli11", "libexpected-dev": "cpp-expected", "libtomlplusplus-dev": "tomlplusplus",
         "libseccomp-dev": "libseccomp", "libdw-dev": "elfutils", "python3-dev": "python"}
CONDAS_OWN = {"${{ stdlib('c') }}", "pip", "setuptools"}


class Conda(Case):
    def setUp(self):
        super().setUp()
        self.source = pathlib.Path(SOURCE)
        self.recipe = yaml.safe_load((self.source / "scripts/conda/recipe.yaml").read_text())

    def test_it_has_the_parts_of_the_format(self):
        self.assertEqual(list(self.recipe), ["schema_version", "context", "package", "source", "build", "requirements",
                                             "tests", "about"])
        self.assertEqual((self.recipe["schema_version"], self.recipe["build"]["number"]), (1, 0))
        self.assertEqual(self.recipe["package"], {"name": "filetimer", "version": "${{ version }}"})
        self.assertEqual((self.source / "scripts/conda" / self.recipe["source"]["path"]).resolve(), self.source)
        self.assertEqual(list(self.recipe["requirements"]), ["build", "host", "run"])
        self.assertTrue(all(isinstance(line, str) for line in self.recipe["build"]["script"]))
        self.assertEqual([list(test) for test in self.recipe["tests"]], [["python"], ["package_contents"], ["script"]])

    def test_version_licence_and_python_are_those_of_the_project(self):
        project = tomllib.loads((self.source / "timer_client/python/pyproject.toml").read_text())["project"]
        about = self.recipe["about"]
        self.assertEqual(self.recipe["context"]["version"], VERSION)
        self.assertEqual((about["summary"], about["license"]), (project["description"], project["license"]["text"]))
        self.assertTrue((self.source / about["license_file"]).read_text().startswith("MIT License"))
        self.assertEqual(self.recipe["requirements"]["run"], [f"python {project['requires-python']}"])

    def test_it_is_built_with_the_same_packages_and_existing_options(self):
        text = (self.source / "scripts/install-deps").read_text()
        packages = re.search(r"^build_packages=\((.*?)\)", text, re.DOTALL | re.MULTILINE)
        required = self.recipe["requirements"]
        names = {each if each.startswith("$") else each.split()[0] for each in required["build"] + required["host"]}
        self.assertEqual(names, {NAMES[each] for each in packages[1].split()} | CONDAS_OWN)
        [least] = re.findall(r"cmake (>=\S+)", "\n".join(required["build"]))
        root = (self.source / "CMakeLists.txt").read_text()
        self.assertIn(f"cmake_minimum_required(VERSION {least[2:]})", root)
        options = root + (self.source / "timer_server/systemd/CMakeLists.txt").read_text()
        for name in re.findall(r"-D(FILETIMER_\w+)=", "\n".join(self.recipe["build"]["script"])):
            self.assertRegex(options, rf"(option|set)\({name} ")

    def test_it_tests_what_is_installed(self):
        modules, contents, script = (next(iter(test.values())) for test in self.recipe["tests"])
        for module in modules["imports"]:
            path = self.source / "timer_client/python" / module.replace(".", "/")
            self.assertTrue(path.is_dir() or path.with_suffix(".py").is_file(), module)
        installed = re.findall(r"install\(TARGETS (\w+) RUNTIME COMPONENT",
                               (self.source / "scripts/packaging/CMakeLists.txt").read_text())
        self.assertEqual(contents["bin"], sorted(installed))
        self.assertEqual({line.split()[0] for line in script}, set(installed))
        for file in contents["files"]:
            name = os.path.basename(file)
            found = [*self.source.glob(f"docs/man/{name}"), *self.source.glob(f"scripts/packaging/*/{name}.in")]
            self.assertEqual(len(found), 1, file)


if __name__ == "__main__":
    suite.main("" if yaml else "Debian's python3-yaml is missing")
