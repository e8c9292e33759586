# SPDX-License-Identifier: MIT
"""The interface of the package: help(), signatures, type stubs."""
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
from filetimer import admin, errors

# Only the base classes of the package's classes: mypy takes half a minute to read all of torch.
FAKES = {
    "torch/distributed/elastic/timer": """
import abc
class TimerClient(abc.ABC):
    @abc.abstractmethod
    def acquire(self, scope_id: str, expiration_time: float) -> None: ...
    @abc.abstractmethod
    def release(self, scope_id: str) -> None: ...
""",
    "lightning/pytorch/callbacks": "class Callback: ...\n",
    "pytorch_lightning/callbacks": "from lightning.pytorch.callbacks import Callback as Callback\n",
    "transformers": "class TrainerCallback: ...\n"}
# Code of a user in which every line has the right type.
USER = """
import filetimer
import filetimer.admin
from filetimer.errors import InvalidArgument

client: filetimer.Client = filetimer.configure(timeout=3, missing="ignore")
scope: filetimer.Scope = filetimer.expires(30, "x", on_expiry="raise")
with scope as entered:
    left: float | None = entered.remaining
for batch in filetimer.each([1, 2], 60, "data"):
    number: int = batch
with filetimer.heartbeat(60) as heart:
    beaten: bool = heart.beat()
with filetimer.paused("checkpoint"), client.paused():
    pass
count: int = filetimer.admin.shutdown("graceful_or_now", timeout=3)
open_scopes: int = filetimer.admin.status(client=client).open_scopes

@filetimer.expires(3)
def work(number: int) -> str:
    return str(number)

text: str = work(3)
"""
WRONG = """
import filetimer
import filetimer.admin

filetimer.configure(missing="maybe")
filetimer.expires("30")
filetimer.admin.shutdown("force")
number: str = filetimer.admin.status().workers
filetimer.unlimited()
"""


class Interface(unittest.TestCase):
    maxDiff = None

    def public(self):
        for module in (filetimer, admin):
            for name in module.__all__:
                yield name, getattr(module, name)
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
        for thing in (filetimer.configure, filetimer.Client):
            self.assertEqual(inspect.signature(thing).parameters["timeout"].default, 10)
        for thing in (filetimer.heartbeat, filetimer.Client.heartbeat):
            self.assertEqual(inspect.signature(thing).parameters["signal"].default, 9)
        self.assertEqual(admin.shutdown.__defaults__, ("graceful",))
        self.assertEqual(admin.shutdown.__kwdefaults__, {"timeout": 30, "client": None})
        self.assertIn("with filetimer.expires(30, \"forward\")",
                      pydoc.render_doc(filetimer, renderer=pydoc.plaintext))

    def test_the_package_exports_only_what_a_worker_needs(self):
        self.assertEqual(filetimer.__all__, [
            "Client", "Heartbeat", "Scope", "ScopeExpired", "Server", "ServerUnavailable",
            "TimerError", "close", "configure", "each", "expires", "heartbeat", "paused"])
        self.assertEqual(admin.__all__, [
            "Rendezvous", "ServerStatus", "drain", "ping", "rendezvous", "rpc_timeout",
            "shutdown", "status"])
        self.assertLessEqual({*filetimer.__all__, "admin"}, set(dir(filetimer)))
        for name in ("unlimited", "status", "on_shutdown"):
            with self.assertRaises(AttributeError):
                getattr(filetimer, name)

    def test_every_error_is_a_timer_error(self):
        kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
        self.assertEqual(len(kinds), 7)
        for kind in kinds:
            self.assertTrue(issubclass(kind, filetimer.TimerError))

    def test_admin_is_available_without_an_import(self):
        subprocess.run([sys.executable, "-c",
                        "import filetimer; filetimer.admin.status, filetimer.Server"], check=True)

    @unittest.skipUnless(importlib.util.find_spec("mypy"), "no mypy here")
    def test_the_type_stubs_match_the_package(self):
        package = os.path.dirname(filetimer.__file__)
        self.assertTrue(os.path.exists(os.path.join(package, "py.typed")))
        with tempfile.TemporaryDirectory(prefix="filetimer-python-") as folder:
            self.write_fakes(pathlib.Path(folder))
            user = pathlib.Path(folder, "user.py")
            user.write_text(USER)
            self.assertEqual(self.run_mypy(folder, "mypy.stubtest", "filetimer._native"), "")
            self.assertEqual(self.run_mypy(folder, "mypy", "--strict", "-p", "filetimer"), "")
            self.assertEqual(self.run_mypy(folder, "mypy", "--strict", str(user)), "")
            user.write_text(WRONG)
            found = re.findall(r":(\d+): error", self.run_mypy(folder, "mypy", str(user)))
            self.assertEqual(found, ["5", "6", "7", "8", "9"])

    @staticmethod
    def run_mypy(folder, module, *args):
        """Returns mypy's output. Runs it in another folder: mypy reads the working folder, too."""
        done = subprocess.run([sys.executable, "-m", module, *args], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, universal_newlines=True, cwd="/",
                              env=dict(os.environ, MYPY_CACHE_DIR=os.path.join(folder, "cache"),
                                       MYPYPATH=folder,
                                       PYTHONPATH=f"{folder}:{os.environ['PYTHONPATH']}"))
        return "" if done.returncode == 0 else done.stdout

    @staticmethod
    def write_fakes(folder):
        for name, text in FAKES.items():
            path = folder / name
            path.mkdir(parents=True)
            (path / "__init__.py").write_text(text)
            for above in path.relative_to(folder).parents:
                if above.name:
                    (folder / above / "__init__.py").touch()


if __name__ == "__main__":
    suite.main()
