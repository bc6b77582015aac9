"""Workers of a DataLoader, forked and spawned."""

import torch
from support import capture, nothing_left, run_of
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
                Data(),
                batch_size=4,
                num_workers=workers,
                multiprocessing_context=context,
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
