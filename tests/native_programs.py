"""Programs that would crash, hang or leak under a careless recorder. Each prints ``ok`` last.

They run in a process of their own with ``work``, an empty folder; ``captured`` is importable.
"""

from __future__ import annotations

PRELUDE = """
    import ctypes, gc, os, random, signal, subprocess, sys, threading, time, traceback
    import warnings, weakref
    from pathlib import Path
    import torch
    import opguard
    from captured import read
    from opguard.capture.session import CaptureSession
    from opguard.fingerprint import native

    work = Path(sys.argv[1])
    TIMEOUT = 40

    def capture(name, **options):
        return opguard.capture(work / name, mechanism="native", **options)

    def run_of(name):
        return read(work / name)[0]

    def in_threads(*targets):
        threads = [threading.Thread(target=target) for target in targets]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def nothing_left():
        assert CaptureSession.active() is None
        assert not torch.nn.modules.module._global_forward_hooks
        assert threading.Thread.start is start_thread
        until = time.monotonic() + TIMEOUT
        while any(thread.name.startswith("opguard") for thread in threading.enumerate()):
            assert time.monotonic() < until, threading.enumerate()
            time.sleep(0.01)

    start_thread = threading.Thread.start

    def child(work, *, seconds=TIMEOUT):
        # Forks; the child does ``work()`` and ends. Gives its exit code, -14 if it hung.
        pid = os.fork()
        if pid == 0:
            signal.alarm(seconds)
            try:
                work()
            except Exception:
                traceback.print_exc()
                os._exit(1)
            os._exit(7)
        return exit_code(pid)

    def exit_code(pid):
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def calls(count):
        x = torch.ones(3)
        for _ in range(count):
            x = x + 1
        return x
"""

THREADS = """
    def train():
        net = torch.nn.Linear(4, 4)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(150):
            opt.zero_grad()
            net(torch.ones(2, 4)).sum().backward()
            opt.step()

    @torch.jit.script
    def inner(x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = x.sin() + 1
        return x

    @torch.jit.script
    def outer(x: torch.Tensor) -> torch.Tensor:
        tasks = [torch.jit.fork(inner, x) for _ in range(8)]
        for task in tasks:
            x = x + torch.jit.wait(task)
        return x

    def scripted():
        x = torch.ones(3, requires_grad=True)
        for _ in range(5):
            outer(x).sum().backward()

    def large():  # over torch's intra-op threads
        x = torch.ones(1 << 19)
        for _ in range(10):
            x = (x * 2).cumsum(0)

    torch.set_num_threads(2)
    with capture("run"):
        in_threads(train, train, scripted, large)
    run = run_of("run")
    assert run.names.count("addmm") == 300, run.names.count("addmm")
    assert run.names.count("cumsum") == 10
    assert run.names.count("sin") >= 5 * 8 * 20
    seen = run.events + run.state
    assert [e.seq for e in sorted(seen, key=lambda e: e.seq)] == list(range(len(seen)))
    nothing_left()
"""

BACKWARD = """
    # Re-entrant deeper than torch's limit of 60, so that its pool of threads takes over.
    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, depth):
            ctx.depth = depth
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            if ctx.depth:
                with torch.enable_grad():
                    y = torch.ones(2, requires_grad=True)
                    Again.apply(y, ctx.depth - 1).sum().backward()
            return grad.clone(), None

    def deep():
        x = torch.ones(2, requires_grad=True)
        Again.apply(x, 150).sum().backward()

    # Capture starts while this thread is in the middle of a backward pass.
    inside, go = threading.Event(), threading.Event()

    class Wait(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            inside.set()
            assert go.wait(TIMEOUT)
            return grad * 2

    def waiting():
        x = torch.ones(2, requires_grad=True)
        (Wait.apply(x) * 3).sum().backward()
        torch.zeros(7).cos()  # its frames count again

    thread = threading.Thread(target=waiting)
    thread.start()
    assert inside.wait(TIMEOUT)
    with capture("run"):
        go.set()
        thread.join()
        in_threads(deep, deep)
    run = run_of("run")
    assert run.one("cos").line is not None and run.one("cos").phase == "other"
    assert run.names.count("clone") >= 2 * 151, run.names.count("clone")
    assert {e.phase for e in run.all("clone")} == {"backward"}
    nothing_left()
"""

LOADER = """
    from torch.utils.data import DataLoader, Dataset

    class Data(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, i):
            return torch.full((2,), float(i)).mul(2).add(1)

    def main():
        with capture("run"):
            for context in ("fork", "spawn"):
                workers = 2 if context == "fork" else 1
                loader = DataLoader(
                    Data(), batch_size=4, num_workers=workers, multiprocessing_context=context,
                    persistent_workers=context == "fork",
                )
                for _ in range(2 if context == "fork" else 1):
                    assert [batch.sum().item() for batch in loader] == [32.0, 96.0]
                del loader
        assert run_of("run").coverage["uncaptured_processes"] == 3
        nothing_left()
        print("ok")

    if __name__ == "__main__":
        main()
"""

RANKS = """
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.nn.parallel import DistributedDataParallel

    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)

    def halved(state, bucket):  # runs operators on a thread of Gloo
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0].div_(2))

    seen = []
    with capture("run"):
        for hook in (None, allreduce_hook, halved):
            torch.manual_seed(0)
            net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
            for parameter in net.parameters():
                parameter.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum()))
            ddp = DistributedDataParallel(net, bucket_cap_mb=0.01)
            if hook is not None:
                ddp.register_comm_hook(None, hook)
            opt = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for _ in range(5):
                opt.zero_grad()
                ddp(torch.ones(2, 64) * (rank + 1)).sum().backward()
                opt.step()
        dist.barrier()
    assert len(seen) == 3 * 5 * 8
    dist.destroy_process_group()
    nothing_left()
"""

FINALIZERS = """
    # The collector runs on whatever thread allocates: on those that make room for rows, too.
    ran = {}

    class Cyclic:
        def __init__(self, count):
            self.me, self.count = self, count
            weakref.finalize(self, torch.zeros, 2)

        def __del__(self):
            ours = threading.current_thread().name.startswith("opguard")
            ran[ours] = ran.get(ours, 0) + 1
            calls(self.count if ours else 3)

    class Kept(torch.Tensor):
        def __del__(self):
            calls(2)

    gc.set_threshold(5, 2, 2)
    until = time.monotonic() + TIMEOUT
    with capture("run"):
        while ran.get(True, 0) < 2 and time.monotonic() < until:
            Cyclic(50_000)  # more than the queue holds
            for _ in range(500):
                torch.ones(2).as_subclass(Kept)
        gc.set_threshold(1000)
    assert ran.get(True, 0) >= 2, ran
    nothing_left()
"""

FORKS = """
    libc = ctypes.PyDLL(None)
    stop = threading.Event()

    def busy():
        while not stop.is_set():
            torch.ones(20_000, requires_grad=True).mul(2).sum().backward()

    def own():
        with capture(f"child-{os.getpid()}"):
            torch.ones(3).mul(2).sum()
        assert "sum" in run_of(f"child-{os.getpid()}").names

    def leave():
        sys.exit(7)  # through the interpreter's end

    def replace():
        os.execv(sys.executable, [sys.executable, "-c", "raise SystemExit(7)"])

    def many():
        calls(30_000)  # more than the queue holds

    @torch.library.custom_op("stress::forks", mutates_args=())
    def forks(x: torch.Tensor) -> torch.Tensor:
        codes.append(child(own))
        return x + 1

    codes = []
    threads = [threading.Thread(target=busy) for _ in range(2)]
    with capture("run"):
        for thread in threads:
            thread.start()
        for what in (many, leave, replace, own, many, leave):
            codes.append(child(what))
        forks(torch.ones(2))
        pid = libc.fork()  # Python does not hear of it
        if pid == 0:
            many()
            os._exit(7)
        codes.append(exit_code(pid))
        stop.set()
        for thread in threads:
            thread.join()
        torch.ones(3).sin()
    assert codes == [7] * 8, codes
    assert run_of("run").one("sin").seq > 0
    nothing_left()
"""

OPENING = """
    with capture("outer"):
        for _ in range(2):
            try:
                with capture("inner"):
                    raise AssertionError("not reached")
            except opguard.errors.UsageError as error:
                assert "already open" in str(error)
        torch.ones(2)
    assert run_of("outer").names == ["ones"]
    assert not (work / "inner").exists()

    # Several threads at once: one wins, and what the others began is undone.
    together = threading.Barrier(4)
    done = threading.Barrier(4)
    results = []

    def race(name):
        together.wait(TIMEOUT)
        try:
            with capture(name):
                torch.ones(2)
                done.wait(TIMEOUT)
            results.append(name)
        except opguard.errors.UsageError:
            results.append(None)
            done.wait(TIMEOUT)

    in_threads(*[lambda n=n: race(f"race-{n}") for n in range(4)])
    assert sorted(map(bool, results)) == [False, False, False, True], results
    nothing_left()

    # A folder that cannot be used leaves nothing behind.
    (work / "taken").write_text("")
    for _ in range(2):
        try:
            with capture("taken"):
                raise AssertionError("not reached")
        except opguard.errors.OpguardError:
            pass
    nothing_left()
"""

DEFECTS = """
    import functools
    from opguard.capture import native as mechanism
    from opguard.capture import operators

    # The table says that a root rank is to be asked for, which this operator's group cannot tell.
    lib = torch.library.Library("c10d", "FRAGMENT")
    lib.define("stress(Tensor x, int process_group, int root_rank) -> Tensor")
    lib.impl("stress", lambda x, group, root: x + 1, "CPU")
    operators.C10D_WRITES["stress"] = (("x", "root"),)
    broken = torch.ops.c10d.stress

    def told(body):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            body()
        return [str(warning.message) for warning in caught]

    def defect(name, pause):
        with capture(name):
            torch.ones(3)
            for _ in range(3):
                assert broken(torch.ones(2), 3, 4).tolist() == [2, 2]
                in_threads(lambda: calls(10))
            time.sleep(pause)
            torch.ones(3).sin()

    for name, pause in (("late", 0), ("early", 1.2)):
        (message,) = told(lambda name=name, pause=pause: defect(name, pause))
        assert message.startswith("capture stopped, the run stays partial: "), message
        assert "\\n" not in message, message
        assert not (work / name / "rank-00000" / "close.json").exists()
        assert "sin" not in run_of(name).names
        nothing_left()

    # A Python part of ours fails.
    real = mechanism.Native.exported
    mechanism.Native.exported = functools.partial(int, "x")

    def python():
        with capture("python"):
            torch.ones(2).__dlpack__()
            calls(10)

    (message,) = told(python)
    assert "a defect in opguard: TypeError" in message, message
    mechanism.Native.exported = real
    nothing_left()

    # Arguments of other libraries that are called as torch's are.
    own = torch.library.Library("stress", "DEF")
    own.define(
        "odd(Tensor x, int generator, str device) -> Tensor",
        tags=(torch.Tag.nondeterministic_seeded,),
    )
    own.impl("odd", lambda x, generator, device: x + generator, "CPU")
    def odd():
        with capture("odd"):
            torch.ops.stress.odd(torch.ones(2), 3, "here")
    assert told(odd) == []
    assert run_of("odd").names[-1] == "odd"
    nothing_left()
"""

RAISING = """
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            return grad.view(7, 9)

    @torch.library.custom_op("stress::fails", mutates_args=())
    def fails(x: torch.Tensor) -> torch.Tensor:
        x.sin()
        raise KeyError("mine")

    def attempt(call, error):
        try:
            call()
        except error:
            return
        raise AssertionError("nothing was raised")

    def forward():
        x = torch.ones(4)
        for _ in range(50):
            attempt(lambda: x.view(7, 9), RuntimeError)
            attempt(lambda: torch.mm(x, x), RuntimeError)
            attempt(lambda: fails(x), KeyError)

    def backward():
        for _ in range(50):
            x = torch.ones(4, requires_grad=True)
            attempt(lambda: Fails.apply(x).sum().backward(), RuntimeError)

    with capture("run"):
        in_threads(forward, backward, forward)
        torch.ones(3).cos()
    run = run_of("run")
    assert sum(e.raised for e in run.all("mm")) == 100
    assert sum(e.raised for e in run.all("fails")) == 100
    assert sum(e.raised for e in run.all("view") if e.phase == "backward") == 50
    assert not run.one("cos").raised
    assert "sin" not in run.names  # it is part of the operator that failed
    nothing_left()
"""

LONG_CALLS = """
    began, go = threading.Event(), threading.Event()

    @torch.library.custom_op("stress::waits", mutates_args=())
    def waits(x: torch.Tensor) -> torch.Tensor:
        began.set()
        assert go.wait(TIMEOUT)
        return x + 1

    def long_call():
        waits(torch.ones(3))
        torch.zeros(2).cos()

    stop = threading.Event()

    def busy():
        while not stop.is_set():
            torch.ones(3, requires_grad=True).mul(2).sum().backward()

    def start(target):
        thread = threading.Thread(target=target)
        thread.start()
        return thread

    others = [start(busy) for _ in range(2)]
    for number in range(8):
        # The call begins in one capture and returns in the next, whose recorder may well have the
        # address of the first.
        began.clear(), go.clear()
        with capture(f"{number}-first"):
            thread = start(long_call)
            assert began.wait(TIMEOUT)
        with capture(f"{number}-second"):
            go.set()
            thread.join()
            torch.ones(2).tan()
        names = run_of(f"{number}-second").names
        assert "waits" not in names and "tan" in names and "cos" in names, names

        # It begins before the capture, and ends in it.
        began.clear(), go.clear()
        thread = start(long_call)
        assert began.wait(TIMEOUT)
        with capture(f"{number}-third"):
            go.set()
            thread.join()
        assert "waits" not in run_of(f"{number}-third").names
        assert "cos" in run_of(f"{number}-third").names
    stop.set()
    for thread in others:
        thread.join()

    # A capture that its own operator closes.
    @torch.library.custom_op("stress::closes", mutates_args=())
    def closes(x: torch.Tensor) -> torch.Tensor:
        session.__exit__(None, None, None)
        return x + 1

    session = capture("closed")
    session.__enter__()
    closes(torch.ones(2))
    assert run_of("closed").names == ["ones"], run_of("closed").names
    nothing_left()
"""

MANY_CAPTURES = """
    import shutil

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    net = torch.nn.Linear(4, 4)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.ones(2, 4)).sum().backward()
    tasks = len(os.listdir("/proc/self/task"))

    def one():
        with capture("run", force=True):
            opt.zero_grad()
            net(torch.ones(2, 4)).sum().backward()
            opt.step()
            in_threads(lambda: torch.ones(5))

    marks = []
    for number in range(200):
        one()
        if number >= 50:
            marks.append(resident())
    early, late = max(marks[:50]), max(marks[-50:])
    assert late - early < 4 << 20, (early, late)
    nothing_left()
    assert threading.active_count() == 1, threading.enumerate()
    until = time.monotonic() + TIMEOUT
    while len(os.listdir("/proc/self/task")) > tasks:  # they are gone soon after their end
        assert time.monotonic() < until
        time.sleep(0.01)
"""

SIGNALS = """
    class Mine(Exception):
        pass

    def raises(*_):
        raise Mine

    net = torch.nn.Linear(3, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)

    def train(steps=200):
        for _ in range(steps):
            opt.zero_grad()
            net(torch.ones(2, 3)).sum().backward()
            opt.step()
            torch.ones(4).__dlpack__()

    # What a handler raises reaches the program, wherever it strikes, and capture goes on.
    train(2)  # torch's own imports swallow what is raised in them
    signal.signal(signal.SIGALRM, raises)
    struck = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with capture("alarms"):
            for number in range(150):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.0005 + number * 1e-5)
                    train()
                except Mine:
                    struck += 1
            train(2)
            torch.ones(3).cos()
    assert struck > 100, struck
    assert run_of("alarms").names[-1] == "cos"
    nothing_left()

    # SIGINT at random moments of short captures: all of it is taken out, each time.
    random.seed(0)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    warnings.simplefilter("ignore")
    began = time.monotonic()
    with capture("timed"):
        train(2)
    span = time.monotonic() - began
    hits = 0
    for number in range(40):
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-4 + random.random() * span)
            with capture(f"hit-{number}"):
                train(2)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            hits += 1
        nothing_left()
    assert hits
    with capture("last"):
        torch.ones(2)
    assert run_of("last").names == ["ones"]
"""

DISKS = """
    import resource
    from opguard.store import rank_files

    def limited(name):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with capture(name):
                in_threads(lambda: calls(60_000), lambda: calls(60_000))
        nothing_left()
        return [str(warning.message) for warning in caught]

    # The disk is full: the program goes on.
    real = rank_files.RankFiles.publish
    room = [3]
    def full(self, pending):
        room[0] -= 1
        if room[0] < 0:
            raise OSError(28, "No space left on device")
        real(self, pending)
    rank_files.RankFiles.publish = full
    (message,) = limited("full")
    assert "No space left" in message, message
    assert not (work / "full" / "rank-00000" / "close.json").exists()

    # It is slow: threads wait, and nothing is lost.
    def slow(self, pending):
        time.sleep(0.05)
        real(self, pending)
    rank_files.RankFiles.publish = slow
    assert limited("slow") == []
    run = opguard.load_run(work / "slow")
    rank_files.RankFiles.publish = real
    assert len(run.ranks[0].boundary) >= 120_002

    # Rows cannot be built.
    from opguard.capture import native as mechanism
    build = mechanism.Rows.build
    def broken(self):
        raise ZeroDivisionError("mine")
    mechanism.Rows.build = broken
    (message,) = limited("broken")
    assert "ZeroDivisionError" in message, message
    mechanism.Rows.build = build

    # The thread that carries them dies.
    def dies(self, block, room):
        raise MemoryError
    init = mechanism.Rows.__init__
    mechanism.Rows.__init__ = dies
    (message,) = limited("dies")
    mechanism.Rows.__init__ = init
"""

OBSERVERS = """
    from torch.profiler import ProfilerActivity, profile, record_function, schedule

    def train():
        net = torch.nn.Linear(4, 4)
        for _ in range(30):
            with record_function("mine"):
                net(torch.ones(2, 4)).sum().backward()

    with capture("imported"):  # torch's profiler of stacks reads names of modules' code, freed
        train()  # once they are imported

    # Both work, whichever begins or ends first.
    with profile(activities=[ProfilerActivity.CPU], with_stack=True, profile_memory=True) as early:
        with capture("inner"):
            in_threads(train)  # which torch's profiler does not see
            train()
    profiler = profile(
        activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=2, repeat=3)
    )
    with capture("outer"):
        with profiler:
            for _ in range(12):
                train()
                profiler.step()
        crossing = profile(activities=[ProfilerActivity.CPU])
        crossing.__enter__()
        train()
    train()
    crossing.__exit__(None, None, None)
    for found in (early, crossing):
        counts = {event.key: event.count for event in found.key_averages()}
        assert counts["aten::addmm"] == (30 if found is early else 60), counts["aten::addmm"]
    assert run_of("inner").names.count("addmm") == 60
    assert run_of("outer").names.count("addmm") == 13 * 30

    # Another listener of record functions, which comes and goes.
    observer = torch.profiler.ExecutionTraceObserver()
    observer.register_callback(str(work / "trace.json"))
    with capture("traced"):
        observer.start()
        train()
        observer.stop()
        train()
    observer.unregister_callback()
    assert run_of("traced").names.count("addmm") == 60
    nothing_left()
"""

WRAPPERS = """
    # An operator gives back a tensor that asks Python of its shape and layout, which takes the
    # GIL; another thread holds that and wants the capture's lock.
    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(
                cls, inner.shape, dtype=inner.dtype, dispatch_sizes_strides_policy="sizes",
                dispatch_layout=True, dispatch_device=True,
            )

        def __init__(self, inner):
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            plain = [arg.inner if isinstance(arg, Wrapper) else arg for arg in args]
            return func(*plain, **(kwargs or {}))

    lib = torch.library.Library("stress", "DEF")
    lib.define("wrap(Tensor x) -> Tensor")
    lib.impl("wrap", lambda x: Wrapper(x), "CPU")
    lib.impl("wrap", lambda x: torch.ones(1), "NestedTensorCPU")
    lib.impl("wrap", torch.library.fallthrough_kernel, "AutogradNestedTensor")
    wrap = torch.ops.stress.wrap
    wrap(torch.ones(3))

    stop = threading.Event()

    def exports():
        x = torch.ones(2)
        while not stop.is_set():
            x.__dlpack__()

    def wraps():
        for _ in range(1500):
            wrap(torch.ones(3)) + 1
        stop.set()

    with capture("run"):
        in_threads(exports, exports, wraps)
    (record,) = run_of("run").all("wrap")[0].outputs.values()
    assert record["reason"] == "freed" and record["shape"] == [3], record

    # One that torch refuses to tell the shape of.
    with warnings.catch_warnings():
        warnings.simplefilter("error", opguard.api.OpguardWarning)
        with capture("nested"):
            freed = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
            freed.untyped_storage().resize_(0)
            torch.ops.stress.wrap(freed)
            torch.ones(2).sin()
    assert run_of("nested").names[-1] == "sin"
    nothing_left()
"""

# What follows runs under `opguard run` or needs the interpreter's end.

LEFT_OPEN = """
    session = capture("run")
    session.__enter__()

    def busy():
        while True:
            torch.ones(200, requires_grad=True).mul(2).sum().backward()

    for _ in range(2):
        threading.Thread(target=busy, daemon=True).start()
    time.sleep(0.2)
"""

LEFT_OPEN_IN_THREAD = """
    def short():
        for number in range(100_000):
            with capture(f"run-{number}"):
                torch.ones(3).sum()

    threading.Thread(target=short, daemon=True).start()
    time.sleep(0.3)
"""

THREAD_EXITS = """
    def leaves():
        torch.ones(3)
        sys.exit(3)

    def captures():
        with capture("in-thread"):
            torch.ones(4)
            in_threads(leaves, lambda: torch.zeros(2))
            sys.exit(4)

    in_threads(captures)
    run = run_of("in-thread")
    assert sorted(run.names) == ["ones", "ones", "zeros"]
    nothing_left()
"""

STOPPED = """
    import sys
    import torch

    net = torch.nn.Linear(2, 2)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    swallowed = 0
    while True:
        try:
            opt.zero_grad()
            net(torch.ones(1, 2)).sum().backward()
            opt.step()
        except SystemExit:
            swallowed += 1
            if swallowed > int(sys.argv[1]):
                raise
"""
