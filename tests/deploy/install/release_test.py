# SPDX-License-Identifier: MIT
"""The scripts that make a release: their functions, without a build."""
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import shlex

import suite
from installed import SOURCE, Case


def load(script):
    """Returns a script as a module."""
    loader = importlib.machinery.SourceFileLoader(script, os.path.join(SOURCE, "scripts", script))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(script, loader))
    loader.exec_module(module)
    return module


RELEASE, WHEEL = load("release"), load("wheel")


class Release(Case):
    def test_a_folder_with_a_space_is_one_word_of_the_flags(self):
        presets = json.loads(pathlib.Path(SOURCE, "CMakePresets.json").read_text())["configurePresets"]
        flags = [preset["cacheVariables"]["CMAKE_CXX_FLAGS"].replace("${sourceDir}", "/a b") for preset in presets
                 if preset["name"] in ("package", "static")]
        for each in (*flags, WHEEL.PATHS.format("/a b")):
            self.assertIn("-ffile-prefix-map=/a b=filetimer", shlex.split(each))

    def test_only_files_of_a_release_are_summed(self):
        own = ["filetimer-0.2.0-image-x86_64.tar", "filetimer-doc_0.2.0_all.deb", "libfiletimer-dev_0.2.0_amd64.deb",
               "python3-filetimer_0.2.0_amd64.deb"]
        for name in (*own, "SHA256SUMS", "notes.txt"):
            pathlib.Path(self.path(name)).write_text("")
        os.mkdir(self.path("filetimer-0.2.0-linux-x86_64"))
        self.assertEqual([line.split()[1] for line in RELEASE.sums_of(pathlib.Path(self.folder)).splitlines()], own)


if __name__ == "__main__":
    suite.main()
