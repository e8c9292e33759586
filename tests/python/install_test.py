# SPDX-License-Identifier: MIT
"""Makes a source distribution, builds a wheel from it, and installs the wheel: without a network, with
Debian's setuptools. Works on a copy, so nothing is written beside the sources.
"""
import glob
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import unittest

import suite

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BOUND_S = 800  # some forty files are compiled

SCRIPT = """
import filetimer, os
assert filetimer.__file__.startswith(os.environ["SITE"]), filetimer.__file__
with filetimer.Server() as server, filetimer.Client(server.dir) as client:
    with client.expires(60, "x"):
        print(filetimer.admin.status(client=client).open_scopes)
"""


def has_tools():
    if not all(map(importlib.util.find_spec, ("build", "setuptools", "wheel", "pip"))):
        return False
    # Ubuntu 22.04 has an older one. The version is read without an import of setuptools, which would
    # have to precede that of distutils.
    return int(importlib.metadata.version("setuptools").partition(".")[0]) >= 61


class Install(unittest.TestCase):
    @unittest.skipUnless(has_tools(), "no python3-build, -setuptools (61), -wheel or -pip here")
    def test_from_the_source_to_an_installed_package(self):
        folder = suite.folder_of(self, "python")
        source, dist, site = (os.path.join(folder, name) for name in ("source", "dist", "site"))
        os.mkdir(source)
        shutil.copy(os.path.join(SOURCE, "LICENSE"), source)
        for name in ("common", "timer_client"):
            shutil.copytree(os.path.join(SOURCE, name), os.path.join(source, name),
                            ignore=shutil.ignore_patterns("*.egg-info", "__pycache__", "build"))
        # The source distribution, then the wheel from its contents.
        self.run_python("-m", "build", "--no-isolation", "--outdir", dist,
                        os.path.join(source, "timer_client", "python"), cwd=folder)
        [archive] = glob.glob(os.path.join(dist, "*.tar.gz"))
        with tarfile.open(archive) as tar:
            names = tar.getnames()
        self.assertFalse([name for name in names if "/cli/" in name or "timer_server" in name])
        for ending in ("/filetimer/py.typed", "/LICENSE", "/cpp/common/scope_page.hpp"):
            self.assertTrue([name for name in names if name.endswith(ending)], ending)
        [wheel] = glob.glob(os.path.join(dist, "*.whl"))
        self.assertIn("-cp310-abi3-", wheel)
        self.run_python("-m", "pip", "install", "--no-index", "--no-deps", "--target", site, wheel,
                        cwd=folder)
        out = self.run_python("-c", SCRIPT, cwd=folder, PYTHONPATH=site, SITE=site)
        self.assertEqual(out, "1\n")

    def run_python(self, *args, cwd, **environment):
        done = subprocess.run([sys.executable, *args], cwd=cwd, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, universal_newlines=True, timeout=BOUND_S,
                              env={**os.environ, "PYTHONPATH": "", "CFLAGS": "-O0", **environment})
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout


if __name__ == "__main__":
    suite.main()
