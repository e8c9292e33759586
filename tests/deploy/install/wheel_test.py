# SPDX-License-Identifier: MIT
"""Makes the wheel of scripts/wheel, reads its programs and its extension, and installs it in a virtual
environment, where a worker hangs, is killed, and is explained without a compiler or a package of Debian's.
"""
import os
import platform
import re
import sys
import zipfile

import suite
from installed import BUILD, PYTHON_WORKER, SOURCE, VERSION, Case, run

BUILD_BOUND_S = 1740
LIBRARIES = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
# Of the three programs together, with the archives of Debian 12. Those of Ubuntu 24.04 are larger.
MOST_BYTES = 8_000_000 if platform.freedesktop_os_release()["ID"] == "debian" else 10_000_000
PROGRAMS = ("scripts/timer_server", "scripts/timer_client", "data/libexec/filetimer/filetimer-stacks")
# Variables of the caller that must not matter.
OF_THE_CALLER = {"CFLAGS": "--none", "CXXFLAGS": "--none", "CPPFLAGS": "--none", "PIP_REQUIRE_VIRTUALENV": "1"}
HUNG = """
import time, filetimer
with filetimer.expires(0.3, "forward"):
    time.sleep(60)
"""
# Python ends the thread inside the extension, which has thrown no exception before.
ENDED_IN_THREAD = """
import sys, threading, time, filetimer
class Last:
    def __del__(self, sleep=time.sleep):
        sleep(1)
last = Last()
threading.Thread(target=lambda: filetimer.configure(sys.argv[1], missing="wait", timeout=1000), daemon=True).start()
time.sleep(0.3)
"""


class Wheel(Case):
    def test_a_wheel_has_all_that_a_user_without_a_compiler_needs(self):
        programs = ("--programs", BUILD) if os.environ["STATIC"] == "ON" else ()
        try:
            made = run(os.path.join(SOURCE, "scripts/wheel"), "--output", self.folder, *programs,
                       timeout=BUILD_BOUND_S, env=os.environ | OF_THE_CALLER)
        except AssertionError as error:
            if "'apt-get" in str(error):
                self.skipTest("the source of simdjson cannot be fetched here")
            raise
        wheel = made.splitlines()[-1]
        named = re.fullmatch(rf"filetimer-{VERSION}-cp310-abi3-manylinux_2_(\d+)_\w+\.whl", os.path.basename(wheel))
        self.assertTrue(named, wheel)
        with zipfile.ZipFile(wheel) as package:
            package.extractall(self.path("files"))
            names = {name.removeprefix(f"filetimer-{VERSION}.data/") for name in package.namelist()}
        for name in ("data/share/man/man8/timer_server.8", "data/share/man/man1/timer_client.1",
                     "data/share/bash-completion/completions/timer_client",
                     "data/libexec/filetimer/evidence.d/py-spy", "filetimer/torch.py",
                     "data/share/filetimer/systemd/user/timer_server.service",
                     "data/share/filetimer/examples/requeue_slurm_job",
                     "data/share/doc/filetimer/THIRD-PARTY", "data/share/doc/filetimer/licenses/LGPL-2.1",
                     "data/share/doc/filetimer/licenses/libdw-dev", *PROGRAMS):
            self.assertIn(name, names)
        self.assertTrue([name for name in names if re.search(r"\.dist-info/(licenses/)?LICENSE$", name)])
        self.judge_files(self.path("files"), int(named[1]))
        self.judge_installed(wheel)

    def judge_files(self, folder, minor_version):
        data = os.path.join(folder, f"filetimer-{VERSION}.data")
        for name in PROGRAMS:
            with self.subTest(name):
                self.assertNotRegex(run("readelf", "-dlW", os.path.join(data, name)), "NEEDED|INTERP|RPATH|RUNPATH")
        self.assertLess(sum(os.path.getsize(os.path.join(data, name)) for name in PROGRAMS), MOST_BYTES)
        extension = os.path.join(folder, "filetimer", "_native.abi3.so")
        dynamic = run("readelf", "-dW", extension)
        self.assertLessEqual(set(re.findall(r"NEEDED.*\[(.*)\]", dynamic)), LIBRARIES)
        self.assertNotRegex(dynamic, "RPATH|RUNPATH")
        versions = re.findall(r"GLIBC_2\.(\d+)", run("readelf", "-VW", extension))
        self.assertLessEqual(max(map(int, versions)), minor_version)
        # Its libstdc++ meets no other one in the process.
        self.assertNotRegex(run("readelf", "-W", "--dyn-syms", extension), "UNIQUE|_ZNSt.*DEFAULT +[0-9]")

    def judge_installed(self, wheel):
        """Without variables and with the programs of the environment and of Debian's base alone."""
        home = self.path("venv")
        run(sys.executable, "-m", "venv", "--without-pip", home)
        python = os.path.join(home, "bin", "python")
        run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", wheel)
        options = {"env": {"PATH": f"{home}/bin:/usr/bin:/bin"}, "cwd": self.folder}
        # The environment is not activated: the server is found beside its Python.
        printed = run(python, "-c", PYTHON_WORKER, env={"PATH": "/usr/bin:/bin"}, cwd=self.folder)
        self.assertEqual(printed, f"{VERSION} 1\n")
        with open(self.path("hung.py"), "w", encoding="utf-8") as file:
            file.write(HUNG)
        run("timer_server", "--dir", self.path("job"), "--", python, "hung.py", status=128 + 9, **options)
        shown = run("timer_client", "show", "last", "--dir", self.path("job"), **options)
        self.assertIn("hung in `forward`", shown)
        self.assertIn("hung.py:4 in <module>", shown)
        self.assertIn("(libc.so.6)", shown)  # the native stack, by the helper
        run(python, "-c", ENDED_IN_THREAD, self.path("none"), **options)
        report = self.path("hang.html")
        run("timer_client", "report", "--dir", self.path("job"), "-o", report, **options)
        self.assertGreater(os.path.getsize(report), 1000)


suite.main()
