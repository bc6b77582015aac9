"""Programs that end badly, start processes or fill the disk."""

from __future__ import annotations

PROGRAM = """\
import os, signal, sys, time
import torch

factor, end, chunks = float(sys.argv[1]), sys.argv[2], sys.argv[3]
x = torch.arange(4.0)
for i in range(10):
    x = x * 0.5 + 1
y = x * factor
z = y + 1
if end == "raise":
    raise ValueError("bad luck")
if end == "exit":
    sys.exit(3)
if end == "interrupt":
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
if end == "kill":
    while not (os.path.exists(chunks) and open(chunks).read()):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
print("end")
"""


FULL = """\
import resource, signal, sys
import torch
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
x = torch.zeros(4)
for i in range(20_000):
    x = x + 1
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(x[0].item())
sys.exit(5)
"""


CHILDREN = """\
import multiprocessing, os, subprocess, sys
import torch

def work(queue):
    queue.put(torch.ones(5).sum().item())

if __name__ == "__main__":
    x = torch.arange(3.0)
    child = os.fork()
    if child == 0:
        x.add_(1)
        print("child", x.sum().item(), flush=True)
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), x.sum().item(), flush=True)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=work, args=(queue,))
    process.start()
    print(queue.get())
    process.join()
    sys.stdout.flush()
    from opguard.cli.main import main
    print("inside", main(["run", "-o", sys.argv[1], sys.argv[0]]), flush=True)
    command = [sys.executable, "-m", "opguard", "run", "-o", sys.argv[2], sys.argv[3]]
    print("apart", subprocess.run(command).returncode)
    x.sin()
"""
