# SPDX-License-Identifier: MIT
"""The callbacks for Lightning and for Hugging Face's Trainer, called by fakes in the order that both
document.
"""
import importlib
import inspect
import math
import pickle
import sys
import types
import unittest.mock

import filetimer
import suite
from harness import FAR_S, ConfiguredCase, ServerCase


def fake(name, **members):
    """Makes a module of that name, and all its parent modules."""
    module = types.ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module
    above, _, last = name.rpartition(".")
    if above:
        setattr(sys.modules.get(above) or fake(above), last, module)
    return module


class Callback:
    def __init__(self):
        self.is_made = True

    def on_epoch_end(self, args, state, control, **kwargs):
        pass

    def on_train_epoch_end(self, trainer, pl_module):
        pass


fake("lightning.pytorch.callbacks", Callback=Callback)
OldCallback = type("Callback", (), {})
fake("pytorch_lightning.callbacks", Callback=OldCallback)
fake("transformers", TrainerCallback=Callback)

import filetimer.lightning  # noqa: E402
import filetimer.transformers  # noqa: E402


class Lightning(ConfiguredCase):
    def setUp(self):
        super().setUp()
        self.callback = filetimer.lightning.TimerCallback(10, 20, first_step=FAR_S)

    def test_every_batch_and_every_validation_is_a_scope(self):
        callback, seen = self.callback, []
        callback.setup(None, None, "fit")
        self.assertIsNone(callback._steps.client)  # the process has one
        callback.on_validation_start(None, None)  # the sanity check
        seen.append(self.open_scopes())
        callback.on_validation_end(None, None)
        for batch_idx in range(2):
            callback.on_train_batch_start(None, None, "batch", batch_idx)
            [scope] = self.listed_scopes()
            seen.append([scope["scope"], scope["remaining_s"] > 10])
            callback.on_train_batch_end(None, None, "outputs", "batch", batch_idx)
            seen.append(self.open_scopes())
        callback.teardown(None, None, "fit")
        self.assertEqual(seen, [["validation"], ["train step", True], [], ["train step", False],
                                []])

    def test_a_batch_that_is_skipped_or_raises_leaves_no_scope_behind(self):
        callback = self.callback
        callback.setup(None, None, "fit")
        callback.on_train_batch_start(None, None, "batch", 0)
        callback.on_train_batch_start(None, None, "batch", 1)
        self.assertEqual(self.open_scopes(), ["train step"])
        callback.on_validation_start(None, None)
        self.assertEqual(self.open_scopes(), ["validation"])
        callback.on_exception(None, None, KeyError())
        self.assertEqual(self.open_scopes(), [])
        callback.on_train_batch_start(None, None, "batch", 2)
        callback.teardown(None, None, "fit")
        self.assertEqual(self.open_scopes(), [])

    def test_the_end_of_an_epoch_and_a_checkpoint_end_the_scope_of_a_batch(self):
        callback = self.callback
        callback.setup(None, None, "fit")
        callback.on_train_batch_start(None, None, "batch", 0)  # the model's own returns -1
        callback.on_train_epoch_end(None, None)
        self.assertEqual(self.open_scopes(), [])
        callback.on_train_batch_start(None, None, "batch", 0)
        callback.on_save_checkpoint(None, None, {})  # in the handler of Slurm's signal
        self.assertEqual(self.open_scopes(), [])
        callback.on_train_batch_end(None, None, "outputs", "batch", 0)
        callback.teardown(None, None, "fit")

    def test_it_is_a_callback_of_both_packages_if_both_are_installed(self):
        self.assertIsInstance(self.callback, Callback)
        self.assertIsInstance(self.callback, OldCallback)

    def test_an_exception_of_a_signal_handler_ends_the_import(self):
        handler = unittest.mock.Mock(side_effect=TimeoutError("of a handler"))
        with unittest.mock.patch.dict(sys.modules, {"pytorch_lightning.callbacks": types.ModuleType("older")}):
            sys.modules["pytorch_lightning.callbacks"].__getattr__ = handler
            with self.assertRaisesRegex(TimeoutError, "of a handler"):
                importlib.reload(filetimer.lightning)

    def test_it_can_be_sent_to_the_ranks(self):
        callback = pickle.loads(pickle.dumps(self.callback))
        callback.setup(None, None, "fit")
        callback.on_train_batch_start(None, None, "batch", 0)
        self.assertEqual(self.open_scopes(), ["train step"])
        callback.teardown(None, None, "fit")
        pickle.dumps(callback)  # for the next training


class Transformers(ConfiguredCase):
    def test_every_step_is_a_scope_and_no_scope_is_open_in_between(self):
        callback, seen = filetimer.transformers.TimerCallback(10, first_step=FAR_S), []
        callback.on_train_begin(None, None, None, model=None)
        self.assertIsNone(callback._steps.client)  # the process has one
        for _ in range(2):
            callback.on_step_begin(None, None, None)
            [scope] = self.listed_scopes()
            seen.append([scope["scope"], scope["remaining_s"] > 10])
            callback.on_step_end(None, None, None)
            seen.append(self.open_scopes())  # as in on_evaluate and on_save
        self.assertEqual(seen, [["train step", True], [], ["train step", False], []])
        callback.on_step_begin(None, None, None)
        callback.on_step_begin(None, None, None)  # an exception has ended the step before
        self.assertEqual(self.open_scopes(), ["train step"])
        callback.on_train_end(None, None, None)
        self.assertEqual(self.open_scopes(), [])

    def test_the_step_after_a_checkpoint_has_as_long_as_the_first(self):
        # The ranks that do not save wait in it for the one that does.
        callback, seen = filetimer.transformers.TimerCallback(10, first_step=FAR_S), []
        callback.on_train_begin(None, None, None)
        for saves in (False, True, False, False):
            callback.on_step_begin(None, None, None)
            seen.append(self.listed_scopes()[0]["remaining_s"] > 10)
            callback.on_step_end(None, None, None)
            if saves:
                callback.on_save(None, None, None)
        self.assertEqual(seen, [True, False, True, False])
        callback.on_train_end(None, None, None)

    def test_the_end_of_an_epoch_and_close_leave_a_step_that_is_open(self):
        callback = filetimer.transformers.TimerCallback()
        callback.close()
        callback.on_train_begin(None, None, None)
        callback.on_step_begin(None, None, None)  # too few batches follow for on_step_end
        callback.on_epoch_end(None, None, None)
        self.assertEqual(self.open_scopes(), [])
        callback.on_step_begin(None, None, None)  # an exception ends it
        callback.close()
        callback.on_step_begin(None, None, None)
        self.assertEqual(self.open_scopes(), [])


class Defaults(ServerCase):
    def timeouts(self, start, end):
        seen = []
        for number in range(2):
            start(number)
            [scope] = self.listed_scopes()
            seen.append(round(scope["elapsed_s"] + scope["remaining_s"]))
            end(number)
        return seen

    def test_the_first_batch_has_ten_times_as_long(self):
        callback = filetimer.lightning.TimerCallback()
        self.assertTrue(callback.is_made and filetimer.transformers.TimerCallback().is_made)
        for made in filetimer.lightning, filetimer.transformers:
            self.assertEqual(inspect.signature(made.TimerCallback).parameters["idle_timeout"].default, 1800)
        self.configure()
        for _ in range(2):
            callback.setup(None, None, "fit")
            self.assertEqual(self.open_scopes(), [])
            self.assertEqual([1200, 120], self.timeouts(
                lambda number: callback.on_train_batch_start(None, None, None, number),
                lambda number: callback.on_train_batch_end(None, None, None, None, number)))
            callback.on_train_batch_start(None, None, None, 2)  # an exception ends the training here
        self.assertEqual([1800, 1800], self.timeouts(
            lambda _: callback.on_validation_start(None, None),
            lambda _: callback.on_validation_end(None, None)))

    def test_but_no_longer_than_a_scope_may_have(self):
        self.configure()
        for step in (1e9, math.inf):
            filetimer.lightning.TimerCallback(step).setup(None, None, "fit")
            callback = filetimer.transformers.TimerCallback(step)
            callback.on_train_begin(None, None, None)
        callback.on_step_begin(None, None, None)
        self.assertIsNone(self.listed_scopes()[0]["remaining_s"])  # the step has no deadline, and neither has the first
        callback.close()

    def test_the_first_step_has_ten_times_as_long(self):
        callback = filetimer.transformers.TimerCallback()
        self.configure()
        for _ in range(2):
            callback.on_train_begin(None, None, None)
            self.assertEqual(self.open_scopes(), [])
            self.assertEqual([1200, 120], self.timeouts(
                lambda _: callback.on_step_begin(None, None, None),
                lambda _: callback.on_step_end(None, None, None)))
            callback.on_step_begin(None, None, None)  # an exception ends the training here


# What a rank does with the callbacks; no argument of theirs counts.
RANK = """
sys.path.insert(0, os.environ["TESTS"])
import frameworks_test
from filetimer import lightning, transformers
def train_one_batch(*args, **options):
    callback = lightning.TimerCallback(*args, **options)
    callback.setup(None, None, "fit")
    callback.on_train_batch_start(None, None, None, 0)
    callback.on_train_batch_end(None, None, None, None, 0)
    return callback
def train_one_step():
    callback = transformers.TimerCallback(60, idle_timeout=0.3)
    callback.on_train_begin(None, None, None)
    callback.on_step_begin(None, None, None)
    callback.on_step_end(None, None, None)
    return callback
"""


class Unconfigured(ServerCase):
    def start_rank(self, script):
        return self.start_worker(RANK + script, TESTS=sys.path[0])

    def test_a_rank_that_has_not_called_configure_is_watched(self):
        for script in ("""
callback = lightning.TimerCallback(0.3, first_step=0.3)
callback.setup(None, None, "fit")
callback.on_train_batch_start(None, None, None, 0)
time.sleep(60)
""", """
callback = train_one_step()
time.sleep(60)
""", """
with filetimer.expires(60):
    pass
callback = train_one_step()
time.sleep(60)
"""):
            worker = self.start_rank(script)
            self.assertEqual(worker.wait(timeout=30), -9)
            self.record("killed", worker.pid)
        self.assertEqual([record["scope"] for record in self.records("expired")],
                         ["train step", "(idle)", "(idle)"])

    def test_so_is_one_that_was_forked_after_configure(self):
        for train in 'train_one_batch(60, idle_timeout=0.3)', "train_one_step()":
            self.run_worker(RANK + f"""
def rank():
    training = {train}
    time.sleep(60)
filetimer.configure()
os.environ["FILETIMER_DIR"] = os.devnull  # the rank has the server of the client that it inherits
say(in_child(rank))
""", says="-9\n", TESTS=sys.path[0])

    def test_so_is_one_that_was_forked_after_configure_without_stacks_or_close(self):
        self.run_worker(RANK + """
from filetimer import _stacks
def rank():
    say(train_one_batch()._steps.client is None, train_one_step()._steps.client is None, len(_stacks._offered))
filetimer.configure(stacks=False)
in_child(rank)
filetimer.close()
in_child(rank)
""", says="False False 0\nTrue True 0\n", TESTS=sys.path[0])

    def test_so_is_one_whose_directory_has_a_name_that_is_no_text(self):
        self.run_worker(RANK + """
def rank():
    say(ascii(train_one_step()._steps.client.target)[-15:])
filetimer.configure()
in_child(rank)
""", says="udcff/requests'\n", TESTS=sys.path[0], FILETIMER_DIR=self.dir + "\udcff", FILETIMER_LOG_LEVEL="error")

    def test_the_idle_timeout_ends_with_the_training_and_begins_with_the_next_one(self):
        worker = self.start_rank("""
def is_alive():
    time.sleep(1.2)
    say("alive")
first = train_one_batch(60, idle_timeout=0.3)  # a trainer keeps its callbacks
first.teardown(None, None, "fit")
is_alive()
second = train_one_batch(60, idle_timeout=0.3)
second.on_exception(None, None, KeyError())
is_alive()
third = train_one_step()
third.on_train_end(None, None, None)
is_alive()
training = train_one_batch(60, idle_timeout=0.3)
time.sleep(60)
""")
        self.assertEqual((worker.communicate(timeout=30)[0], worker.returncode), ("alive\n" * 3, -9))
        self.assertEqual([record["scope"] for record in self.records("expired")], ["(idle)"])

    def test_training_continues_without_a_server(self):
        self.run_worker(RANK + 'train_one_batch().teardown(None, None, "fit")\n', TESTS=sys.path[0],
                        FILETIMER_DIR=self.folder + "/none",
                        FILETIMER_LOG_LEVEL="error")  # without it the missing server is a line

    def test_wrong_times_are_refused_when_the_callback_is_made(self):
        with self.assertRaisesRegex(ValueError, "step is 0"):
            filetimer.lightning.TimerCallback(0)
        with self.assertRaisesRegex(ValueError, "validation is 0"):
            filetimer.lightning.TimerCallback(validation=0)
        with self.assertRaisesRegex(ValueError, "first_step is -1"):
            filetimer.transformers.TimerCallback(first_step=-1)


if __name__ == "__main__":
    suite.main()
