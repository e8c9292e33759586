# SPDX-License-Identifier: MIT
"""scripts/bench with stand-ins for install-deps, build and measurements that only report their
calls: it needs only a clone, and its standard output is that of the measurements.
"""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import suite

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"


class Script(unittest.TestCase):
    def test_what_it_needs_comes_first_and_only_the_measurements_are_on_standard_output(self):
        with tempfile.TemporaryDirectory(prefix="filetimer-bench-") as folder:
            clone = pathlib.Path(folder)
            programs = {"scripts/install-deps": "", "bin/cmake": "",
                        "build/bench/bin/filetimer_bench": 'echo "{}"'}
            for name, command in programs.items():
                path = clone / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f'#!/bin/sh\necho "${{0##*/}} $*" >>"$CALLS"\n'
                                f'{command or "echo said by ${0##*/}"}\n')
                path.chmod(0o755)
            shutil.copy(SCRIPTS / "bench", clone / "scripts")
            environment = {"PATH": f"{clone}/bin:{os.environ['PATH']}", "CALLS": f"{clone}/calls"}
            done = subprocess.run([clone / "scripts" / "bench", "--quick"], env=environment,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60,
                                  universal_newlines=True)
            self.assertEqual((done.returncode, done.stdout), (0, "{}\n"), done.stderr)
            self.assertIn("said by install-deps\n", done.stderr)
            first, *builds, last = (clone / "calls").read_text().splitlines()
            self.assertEqual(first, "install-deps build test")
            self.assertEqual([line.split()[0] for line in builds], ["cmake", "cmake"])
            self.assertEqual(last, "filetimer_bench --quick")


if __name__ == "__main__":
    suite.main()
