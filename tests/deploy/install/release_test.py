# SPDX-License-Identifier: MIT
"""The scripts that make a release: their functions, without a build."""
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import re
import shlex
import tarfile
import unittest
import unittest.mock

import suite
from installed import SOURCE, Case, can_mount, run


def load(script):
    """Returns a script as a module."""
    loader = importlib.machinery.SourceFileLoader(script, os.path.join(SOURCE, "scripts", script))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(script, loader))
    loader.exec_module(module)
    return module


RELEASE, WHEEL = load("release"), load("wheel")


class Release(Case):
    def install_deps(self, purpose, *within, status=0):
        """Returns what install-deps says where no package is there, with stand-ins for what changes the machine."""
        programs = {"dpkg-query": "exit 1", "dpkg": "echo >>$0.ran", "apt-get": "", "sudo": 'exec "$@"'}
        for name, does in programs.items():
            pathlib.Path(self.path(name)).write_text(f"#!/bin/sh\n{does}\n")
            os.chmod(self.path(name), 0o755)
        return run(*within, os.path.join(SOURCE, "scripts/install-deps"), purpose, status=status,
                   env={**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}"})

    def test_what_packages_are_made_with_is_installed(self):
        self.assertIn("installing dpkg-dev file xz-utils\n", self.install_deps("package"))
        said = pathlib.Path(SOURCE, "scripts/packaging/debian/finish_stage.cmake").read_text()
        self.assertIn("NOT CPACK_FILETIMER_SHLIBDEPS", said)

    @unittest.skipUnless(can_mount(), "unshare(1) makes no namespace here in which to mount")
    def test_no_foreign_packages_on_ubuntu(self):
        for identity, status in (("ubuntu", 1), ("debian", 0)):
            pathlib.Path(self.path("os-release")).write_text(f"NAME=x\nID={identity}\nID_LIKE=debian\n")
            said = self.install_deps("aarch64", "unshare", "--mount", "sh", "-c",
                                     'mount --bind "$0" /etc/os-release && exec "$@"', self.path("os-release"),
                                     status=status)
            self.assertEqual("aarch64 is for Debian only" in said, bool(status), said)
            self.assertEqual(" libfmt-dev " in said, not status, said)  # the native one, too
            self.assertEqual(os.path.exists(self.path("dpkg.ran")), not status)

    def test_a_folder_with_a_space_is_one_word_of_the_flags(self):
        presets = json.loads(pathlib.Path(SOURCE, "CMakePresets.json").read_text())["configurePresets"]
        flags = [preset["cacheVariables"]["CMAKE_CXX_FLAGS"].replace("${sourceDir}", "/a b") for preset in presets
                 if preset["name"] in ("package", "static")]
        for each in (*flags, WHEEL.PATHS.format("/a b")):
            self.assertIn("-ffile-prefix-map=/a b=filetimer", shlex.split(each))

    def test_flags_of_the_caller_are_not_taken_over(self):
        names = ("CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS")
        with unittest.mock.patch.dict(os.environ, dict.fromkeys(names, "-march=native")):
            environment = WHEEL.environment_of_package("/a", WHEEL.MACHINE)
        for name in names:
            self.assertNotIn("native", environment[name])

    def test_the_license_of_every_library_is_named(self):
        packages = pathlib.Path(SOURCE, "scripts/install-deps").read_text()
        named = pathlib.Path(SOURCE, "scripts/packaging/THIRD-PARTY").read_text().lower()
        libraries = re.findall(r"\blib(\w+)-dev", packages[:packages.index("wheel_packages=")])
        self.assertGreater(len(libraries), 6)
        for name in libraries:
            self.assertIn(name, named)

    def test_docker_finds_the_configuration_and_the_layer_of_the_image(self):
        image = pathlib.Path(self.path("image.tar"))
        RELEASE.write_image(b"layer", "0.2.0", "x86_64", image, 0)
        with tarfile.open(image) as tar:
            [found] = json.load(tar.extractfile("manifest.json"))
            [listed] = json.load(tar.extractfile("index.json"))["manifests"]
            config = json.load(tar.extractfile(found["Config"]))
            [layer] = (tar.extractfile(name).read() for name in found["Layers"])
        self.assertEqual(config["rootfs"]["diff_ids"], [f"sha256:{hashlib.sha256(layer).hexdigest()}"])
        self.assertEqual(found["RepoTags"], ["filetimer:0.2.0"])
        self.assertEqual(listed["annotations"]["io.containerd.image.name"], "docker.io/library/filetimer:0.2.0")
        self.assertEqual(layer, b"layer")

    def test_units_that_are_copied_are_disabled_before_their_program_is_removed(self):
        page = pathlib.Path(SOURCE, "docs/install.md").read_text()
        [units] = re.findall("^for unit in (.*); do$", page, re.MULTILINE)
        removed = " ".join(page.partition("## Uninstalling")[2].split())
        self.assertIn(f"systemctl --user disable --now {units}", removed)

    def test_only_files_of_a_release_are_summed(self):
        own = ["filetimer-0.2.0-image-x86_64.tar", "filetimer-doc_0.2.0_all.deb", "libfiletimer-dev_0.2.0_amd64.deb",
               "python3-filetimer_0.2.0_amd64.deb"]
        for name in (*own, "SHA256SUMS", "notes.txt"):
            pathlib.Path(self.path(name)).write_text("")
        os.mkdir(self.path("filetimer-0.2.0-linux-x86_64"))
        self.assertEqual([line.split()[1] for line in RELEASE.sums_of(pathlib.Path(self.folder)).splitlines()], own)


if __name__ == "__main__":
    suite.main()
