"""Other listeners of torch's record functions, beside and across captures."""

import torch
from support import capture, in_threads, nothing_left, run_of, work
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

print("ok")
