# SPDX-License-Identifier: MIT
"""Makes the wheel of scripts/wheel, reads its programs and its extension, and installs it in a virtual
environment, where a worker hangs, is killed, and is explained without a compiler or a package of Debian's.
"""
import os
import re
import sys
import zipfile

import suite
from installed import SOURCE, VERSION, Case, run

BUILD_BOUND_S = 840
LIBRARIES = {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
OLDEST_LIBC = (2, 34)
MOST_BYTES = 9_000_000  # of the three programs together
PROGRAMS = ("scripts/timer_server", "scripts/timer_client", "data/libexec/filetimer/filetimer-stacks")
HUNG = """
import time, filetimer
with filetimer.expires(0.3, "forward"):
    time.sleep(60)
"""
WITH_SERVER = """
import filetimer, filetimer.admin
with filetimer.Server() as server:
    filetimer.configure(server.dir)
    with filetimer.expires(60, "step"):
        print(filetimer.admin.status().open_scopes)
"""


class Wheel(Case):
    def test_a_wheel_has_all_that_a_user_without_a_compiler_needs(self):
        try:
            made = run(os.path.join(SOURCE, "scripts/wheel"), "--output", self.folder, timeout=BUILD_BOUND_S)
        except AssertionError as error:
            if "'apt-get" in str(error):
                self.skipTest("the source of simdjson cannot be fetched here")
            raise
        wheel = made.splitlines()[-1]
        self.assertRegex(os.path.basename(wheel), rf"^filetimer-{VERSION}-cp310-abi3-manylinux_2_34_\w+\.whl$")
        with zipfile.ZipFile(wheel) as package:
            package.extractall(self.path("files"))
            names = {name.removeprefix(f"filetimer-{VERSION}.data/") for name in package.namelist()}
        for name in ("data/share/man/man8/timer_server.8", "data/share/man/man1/timer_client.1",
                     "data/share/bash-completion/completions/timer_client",
                     "data/libexec/filetimer/evidence.d/py-spy", "filetimer/torch.py", *PROGRAMS):
            self.assertIn(name, names)
        self.judge_files(self.path("files"))
        self.judge_installed(wheel)

    def judge_files(self, folder):
        data = os.path.join(folder, f"filetimer-{VERSION}.data")
        for name in PROGRAMS:
            with self.subTest(name):
                self.assertNotRegex(run("readelf", "-dlW", os.path.join(data, name)), "NEEDED|INTERP|RPATH|RUNPATH")
        self.assertLess(sum(os.path.getsize(os.path.join(data, name)) for name in PROGRAMS), MOST_BYTES)
        extension = os.path.join(folder, "filetimer", "_native.abi3.so")
        dynamic = run("readelf", "-dW", extension)
        self.assertLessEqual(set(re.findall(r"NEEDED.*\[(.*)\]", dynamic)), LIBRARIES)
        self.assertNotRegex(dynamic, "RPATH|RUNPATH")
        versions = re.findall(r"GLIBC_([\d.]+)", run("readelf", "-VW", extension))
        self.assertLessEqual(max(tuple(map(int, version.split("."))) for version in versions), OLDEST_LIBC)

    def judge_installed(self, wheel):
        """Without variables and with the programs of the environment and of Debian's base alone."""
        home = self.path("venv")
        run(sys.executable, "-m", "venv", "--without-pip", home)
        python = os.path.join(home, "bin", "python")
        run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", wheel)
        options = {"env": {"PATH": f"{home}/bin:/usr/bin:/bin"}, "cwd": self.folder}
        # The environment is not activated: the server is found beside its Python.
        printed = run(python, "-c", WITH_SERVER, env={"PATH": "/usr/bin:/bin"}, cwd=self.folder)
        self.assertEqual(printed.strip(), "1")
        with open(self.path("hung.py"), "w", encoding="utf-8") as file:
            file.write(HUNG)
        run("timer_server", "--dir", self.path("job"), "--", python, "hung.py", status=128 + 9, **options)
        shown = run("timer_client", "show", "last", "--dir", self.path("job"), **options)
        self.assertIn("hung in `forward`", shown)
        self.assertIn("hung.py:4 in <module>", shown)
        self.assertIn("(libc.so.6)", shown)  # the native stack, by the helper
        report = self.path("hang.html")
        run("timer_client", "report", "--dir", self.path("job"), "-o", report, **options)
        self.assertGreater(os.path.getsize(report), 1000)


suite.main()
