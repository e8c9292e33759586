#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""The training job of digits_trainer.cpp in PyTorch, with PyTorch's own, unmodified timer client,
or with the Python package filetimer.

    timer_server -- /usr/bin/python3 digits_torch.py --ranks 4 --timeout 5 --hang 2:20
    timer_server -- /usr/bin/python3 digits_torch.py --client filetimer --hang 2:20

It starts its ranks itself, unless torchrun, or another launcher that sets PyTorch's RANK,
WORLD_SIZE, MASTER_ADDR and MASTER_PORT, has started it as one of them:

    timer_server -- torchrun --nproc-per-node 4 --max-restarts 3 \
        digits_torch.py --timeout 5 --checkpoint digits.pt --hang 2:20

A server that starts it sets TORCHELASTIC_TIMER_FILE and FILETIMER_DIR; without these variables it
runs unwatched.
Works with Debian's python3-torch (1.13) and later ones.
"""
import argparse
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.elastic.timer as timer

BATCH = 32  # for each rank
HIDDEN = 32
LEARNING_RATE = 0.3
HELD_OUT_ONE_IN = 5
STEPS_BETWEEN_REPORTS = 50
STEPS_BETWEEN_CHECKPOINTS = 10
EXIT_GRACE_S = 5  # time for the other ranks to notice by themselves that one of them died


def say(text):
    print(f"digits_torch: {text}", file=sys.stderr, flush=True)


def load_digits(path, seed):
    """Returns (training pixels, training labels, held-out pixels, held-out labels), the same in
    every rank."""
    with open(path, encoding="ascii") as file:
        rows = torch.tensor([[int(number) for number in line.split(",")] for line in file])
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))]
    pixels, labels = rows[:, :-1].float() / 16, rows[:, -1]
    cut = len(rows) - len(rows) // HELD_OUT_ONE_IN
    return pixels[:cut], labels[:cut], pixels[cut:], labels[cut:]


def hang():
    """Waits in a read that never returns, as after a lost message."""
    read_end, _write_end = os.pipe()
    os.read(read_end, 1)


def save(path, step, model):
    """Replaces the checkpoint atomically: a reader finds the new one or the previous one."""
    torch.save({"step": step, "model": model.state_dict()}, f"{path}.new")
    os.replace(f"{path}.new", path)


def resume(path, model):
    """Loads the checkpoint into `model` and returns its last step; 0 without a checkpoint."""
    if not path or not os.path.exists(path):
        return 0
    checkpoint = torch.load(path)
    model.load_state_dict(checkpoint["model"])
    return checkpoint["step"]


def train(rank, options, scope):
    with scope("load"):
        pixels, labels, held_out_pixels, held_out_labels = load_digits(options.data, options.seed)
        mine = torch.arange(rank, len(pixels), options.ranks)
    torch.manual_seed(options.seed)  # the same start in every rank
    model = torch.nn.Sequential(
        torch.nn.Linear(64, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    # Drawn in advance, so that a training that resumes from a checkpoint sees the same batches.
    draw = torch.Generator().manual_seed(options.seed * 1000 + rank)
    draws = torch.randint(len(mine), (options.steps, BATCH), generator=draw)
    done = resume(options.checkpoint, model)
    if rank == 0 and done > 0:
        say(f"resumes after step {done}")
    started = time.monotonic()
    for step in range(done + 1, options.steps + 1):
        with scope("load"):
            batch = mine[draws[step - 1]]
        with scope("forward"):
            if (rank, step) == options.hang and done == 0:
                say(f"rank {rank} (pid {os.getpid()}) hangs in forward, step {step}")
                hang()
            loss = torch.nn.functional.cross_entropy(model(pixels[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
        # Twice the time: a rank waits here for the slowest one's `forward`.
        with scope("exchange", 2 * options.timeout):
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= options.ranks
        with scope("step"):
            optimizer.step()
        if rank == 0 and (step == 1 or step % STEPS_BETWEEN_REPORTS == 0):
            print(f"step {step:4}  loss {loss.item():.3f}", flush=True)
        if rank == 0 and options.checkpoint and step % STEPS_BETWEEN_CHECKPOINTS == 0:
            with scope("checkpoint"):
                save(options.checkpoint, step, model)
    if rank == 0:
        hits = model(held_out_pixels).argmax(dim=1) == held_out_labels
        print(
            f"accuracy {hits.float().mean().item():.3f} on {len(hits)} held-out digits, after "
            f"{options.steps} steps of {options.ranks} ranks in {time.monotonic() - started:.2f} s"
        )


def torch_scopes(timeout):
    """Scopes of PyTorch's own timer client, or None without a server."""
    pipe = os.environ.get("TORCHELASTIC_TIMER_FILE")
    if not pipe:
        return None
    timer.configure(timer.FileTimerClient(pipe))
    return lambda name, after=timeout: timer.expires(after=after, scope=name)


def filetimer_scopes(timeout):
    """Scopes of the package filetimer, or None without a server."""
    import filetimer

    if not os.environ.get("FILETIMER_DIR"):
        return None
    filetimer.configure()
    return lambda name, after=timeout: filetimer.expires(after, name)


CLIENTS = {"torch": torch_scopes, "filetimer": filetimer_scopes}


def run_rank(rank, options, meeting_point):
    """Runs a rank. `meeting_point` is the init_method of init_process_group()."""
    torch.set_num_threads(1)  # the ranks share the cores
    scope = CLIENTS[options.client](options.timeout)
    if scope is None:
        if rank == 0:
            say("no timer server has started this: running unwatched")

        def scope(name, after=0):
            return contextlib.nullcontext()

    try:
        with scope("connect", 10 * options.timeout):
            dist.init_process_group(
                "gloo", init_method=meeting_point, rank=rank, world_size=options.ranks
            )
        train(rank, options, scope)
        with scope("disconnect", 2 * options.timeout):
            dist.barrier()  # no rank leaves while another one still talks to it
            dist.destroy_process_group()  # its threads end before the interpreter does
    except RuntimeError as error:  # gloo's word for a rank that is gone
        say(f"rank {rank}: {str(error).splitlines()[0]}")
        sys.exit(1)


def launch(options):
    """Starts the ranks and waits for them, as torchrun does. Returns whether all succeeded."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # "spawn" starts each rank as a new program: its rank can be read in /proc/PID/environ.
    context = multiprocessing.get_context("spawn")
    all_well = True
    with tempfile.TemporaryDirectory() as folder:
        running = {}
        for rank in range(options.ranks):
            os.environ.update(
                RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(options.ranks)
            )
            process = context.Process(
                target=run_rank, args=(rank, options, f"file://{folder}/meeting"), daemon=True
            )
            process.start()
            running[process.sentinel] = (rank, process)
        while running:
            ended = multiprocessing.connection.wait(running, None if all_well else EXIT_GRACE_S)
            if not ended:
                for _, process in running.values():
                    process.kill()
            for sentinel in ended:
                rank, process = running.pop(sentinel)
                process.join()
                if process.exitcode != 0:
                    how = (
                        f"was killed by signal {-process.exitcode}"
                        if process.exitcode < 0
                        else f"failed with status {process.exitcode}"
                    )
                    say(f"rank {rank} (pid {process.pid}) {how}")
                    all_well = False
    return all_well


def hang_at(text):
    rank, step = text.split(":")
    return int(rank), int(step)


def main():
    parser = argparse.ArgumentParser(description="Trains a small network on handwritten digits.")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=30,
                        help="of each phase, in seconds; exchange gets twice as much")
    parser.add_argument("--client", choices=CLIENTS, default="torch")
    parser.add_argument(
        "--hang",
        type=hang_at,
        metavar="RANK:STEP",
        help="hangs there unless it resumes from a checkpoint",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="FILE",
        help=f"written every {STEPS_BETWEEN_CHECKPOINTS} steps; training resumes from it",
    )
    parser.add_argument(
        "--data", default=pathlib.Path(__file__).resolve().parent / "data" / "digits.csv"
    )
    options = parser.parse_args()
    if "MASTER_ADDR" in os.environ and "RANK" in os.environ:
        options.ranks = int(os.environ["WORLD_SIZE"])
        run_rank(int(os.environ["RANK"]), options, "env://")
        return
    if not launch(options):
        say("the training failed")
        sys.exit(1)


if __name__ == "__main__":
    main()
