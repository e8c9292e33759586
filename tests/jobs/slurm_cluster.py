# SPDX-License-Identifier: MIT
"""A private Slurm for a test: munged, slurmctld and two nodes n1 and n2, all on this host and in
one folder, with free ports. Needs root, as slurmd does.
"""
import os
import re
import secrets
import shutil
import socket
import subprocess

from job_case import BOUND_S, die_with_the_test, free_port, wait_until

NODES = ("n1", "n2")
START_S = 60  # normally a second
MAX_FIRST_JOB = 60_000_000  # Slurm's MaxJobId is 67,043,328
DAEMONS_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}

# No cgroups and no accounting. cred_expire: a job that was requeued waits for as long. FirstJobId:
# the runtime directory is named after the job, and another test may have a cluster on this host.
CONFIG = """
ClusterName=filetimer
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
KillWait=5
ReturnToService=2
FirstJobId={first_job}
PartitionName=all Nodes={nodes} Default=YES MaxTime=INFINITE State=UP
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=16 State=UNKNOWN\n"


def missing():
    """Returns why there can be no cluster here; empty: there can."""
    if os.geteuid() != 0:
        return "not root: slurmd starts jobs for their users"
    programs = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
    absent = [each for each in programs if not shutil.which(each, path=DAEMONS_PATH)]
    if absent:
        return (f"no {', '.join(absent)}: Debian has them in munge, slurmctld, slurmd and "
                "slurm-client")
    return ""


class Unusable(Exception):
    """Slurm does not work on this machine; the text says why, in one line."""


class Cluster:
    def __init__(self, folder):
        self.folder = folder
        folder.chmod(0o755)  # all users need munge's socket
        self.environment = dict(os.environ, PATH=DAEMONS_PATH,
                                SLURM_CONF=str(folder / "slurm.conf"))
        self.daemons = []

    def start(self):
        (self.folder / "state").mkdir()
        for node in NODES:
            (self.folder / f"spool-{node}").mkdir()
        host = socket.gethostname()
        config = CONFIG.format(host=host, folder=self.folder, port=free_port(),
                               nodes=",".join(NODES),
                               first_job=1 + secrets.randbelow(MAX_FIRST_JOB))
        config += "".join(NODE.format(name=name, host=host, port=free_port()) for name in NODES)
        (self.folder / "slurm.conf").write_text(config)
        # This plugin, because slurmd would look for another one in /sys, which may not be mounted.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        self.run_daemon("munged", "--foreground", f"--socket={self.folder}/munge.socket",
                        f"--key-file={key}", f"--pid-file={self.folder}/munged.pid",
                        f"--log-file={self.folder}/munged.log",
                        f"--seed-file={self.folder}/munged.seed")
        self.wait_for("munged listens", (self.folder / "munge.socket").exists)
        self.run_daemon("slurmctld", "-D")
        for node in NODES:
            self.run_daemon("slurmd", "-D", "-N", node)
        self.wait_for("both nodes are idle",
                      lambda: self.ask("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * 2)

    def wait_for(self, what, condition):
        """Waits for a condition. Fails if a daemon ends before."""
        def holds():
            for daemon in self.daemons:
                if daemon.poll() is not None:
                    raise Unusable(f"{daemon.args[0]} ends at once: {self.last_error(daemon.args)}")
            return condition()
        try:
            wait_until(what, holds, START_S)
        except AssertionError as error:
            raise Unusable(f"{error}: {self.last_error(['slurmd'])}") from None

    def last_error(self, argv):
        """Returns the last line with `error`; a default if there is none."""
        path = self.folder / f"{argv[0]}.out"
        errors = re.findall(r"(?i)\berror: *(.*)", path.read_text(errors="replace"))
        # The very last line of slurmd only says that it failed.
        return next((each for each in errors if "initializ" not in each), "it says no error")

    def run_daemon(self, *argv):
        with open(self.folder / f"{argv[0]}.out", "ab") as output:
            self.daemons.append(subprocess.Popen(
                argv, env=self.environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, preexec_fn=die_with_the_test))

    def stop(self):
        """Ends jobs first, because a slurmd that stops leaves its jobs behind."""
        try:
            if len(self.daemons) > 1:
                self.ask("scancel", "--user=root")
                wait_until("no job is left",
                           lambda: not self.ask("squeue", "-h", "-t", "all", "-o", "%i",
                                                "--states=PD,R,S,CG").split())
        finally:
            for daemon in reversed(self.daemons):
                daemon.terminate()
                try:
                    daemon.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    daemon.wait(timeout=20)

    def ask(self, *argv, **environment):
        """Returns the output of a command of Slurm; nothing if it fails."""
        done = subprocess.run([str(word) for word in argv], cwd=self.folder,
                              env=dict(self.environment, **environment),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=BOUND_S,
                              universal_newlines=True)
        return done.stdout if done.returncode == 0 else ""

    def submit(self, *words, **environment):
        """Submits a job and returns its id."""
        output = self.ask("sbatch", "--parsable", *words, **environment).strip()
        if not output.isdigit():
            raise AssertionError(f"sbatch refused {words}: {self.logs()}")
        return output

    def job(self, job):
        """Returns the properties of a job: JobState, Restarts, ExitCode, ..."""
        return dict(re.findall(r"(\w+)=(\S*)", self.ask("scontrol", "show", "job", "-o", job)))

    def wait_for_end(self, job):
        return wait_until(f"job {job} ends",
                          lambda: self.job(job).get("JobState") in OVER) and self.job(job)

    def logs(self):
        """Returns the last lines of the daemons' logs, to diagnose a failed test."""
        files = sorted(self.folder.glob("*.log")) + sorted(self.folder.glob("*.out"))
        return "\n".join(f"--- {file.name}\n{file.read_text(errors='replace')[-3000:]}"
                         for file in files)
