# SPDX-License-Identifier: MIT
"""What people see of the package before they run it: help(), signatures, type stubs."""
import importlib.util
import inspect
import os
import pathlib
import pydoc
import re
import subprocess
import sys
import tempfile
import unittest

import filetimer
import suite

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

TORCH_TIMER = """
import abc
class TimerClient(abc.ABC):
    @abc.abstractmethod
    def acquire(self, scope_id: str, expiration_time: float) -> None: ...
    @abc.abstractmethod
    def release(self, scope_id: str) -> None: ...
"""


class Interface(unittest.TestCase):
    def public(self):
        for name in filetimer.__all__:
            yield name, getattr(filetimer, name)
        for kind in (filetimer.Client, filetimer.Scope, filetimer.Heartbeat, filetimer.Server):
            for name in dir(kind):
                if not name.startswith("_"):
                    yield f"{kind.__name__}.{name}", getattr(kind, name)

    def test_everything_public_has_help_and_a_signature(self):
        for name, thing in self.public():
            with self.subTest(name):
                self.assertTrue(inspect.getdoc(thing))
                if inspect.isroutine(thing):
                    inspect.signature(thing)

    def test_help_has_the_units_and_the_errors(self):
        for thing in (filetimer.expires, filetimer.Scope, filetimer.configure, filetimer.Client):
            text = pydoc.render_doc(thing, renderer=pydoc.plaintext)
            self.assertIn("seconds", text)
            self.assertIn("Raises", text + filetimer.Client.__doc__)
        self.assertEqual(str(inspect.signature(filetimer.expires)),
                         "(timeout, name=None, *, signal=9, grace=None, warn_after=None, "
                         "first_timeout=None, on_expiry='kill')")
        self.assertIn("with filetimer.expires(30, \"forward\")",
                      pydoc.render_doc(filetimer, renderer=pydoc.plaintext))

    def test_there_is_one_version(self):
        with open(os.path.join(SOURCE, "CMakeLists.txt")) as file:
            version = re.search(r"project\(filetimer VERSION (\S+)", file.read()).group(1)
        self.assertEqual(filetimer.__version__, version)

    @unittest.skipUnless(importlib.util.find_spec("mypy"), "no mypy here")
    @unittest.skipUnless(importlib.util.find_spec("torch"), "no torch here")
    def test_the_type_stubs_are_what_is_there(self):
        # From elsewhere: mypy takes its paths from the working folder, and keeps a cache there.
        package = os.path.dirname(filetimer.__file__)
        self.assertTrue(os.path.exists(os.path.join(package, "py.typed")))
        with tempfile.TemporaryDirectory(prefix="filetimer-python-") as folder:
            self.write_stub_of_torch(folder)
            done = subprocess.run([sys.executable, "-m", "mypy.stubtest", "filetimer"],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  universal_newlines=True, cwd="/", env=dict(
                                      os.environ, MYPY_CACHE_DIR=os.devnull, MYPYPATH=folder))
        self.assertEqual(done.returncode, 0, done.stdout)

    @staticmethod
    def write_stub_of_torch(folder):
        """Of the one class that is a base of ours; to read all of torch takes mypy half a minute."""
        timer = pathlib.Path(folder, "torch", "distributed", "elastic", "timer.pyi")
        timer.parent.mkdir(parents=True)
        for each in list(timer.parents)[:3]:
            (each / "__init__.pyi").touch()
        timer.write_text(TORCH_TIMER)


if __name__ == "__main__":
    suite.main()
