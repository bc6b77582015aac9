"""How the ranks of one job come to share a folder, and what is refused or deleted."""

import errno
import json
import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from opguard.errors import CaptureError, UsageError
from opguard.store import files, run_folder
from opguard.store.files import encode_object, folder_lock, read_object
from opguard.store.run_folder import check_free, create_rank_folder

RANDOM = "random-0123"


def create(folder, rank=0, world_size=1, run_id=None, force=False):
    return create_rank_folder(
        folder,
        rank=rank,
        world_size=world_size,
        run_id=run_id,
        opening={"mode": "trusted"},
        force=force,
    )


def stored_run(folder, run_id, world_size, *ranks):
    folder.mkdir()
    value = {"format": "opguard-run", "version": 1, "run_id": run_id, "world_size": world_size}
    (folder / "run.json").write_bytes(encode_object(value))
    for rank in ranks:
        (folder / f"rank-{rank:05d}").mkdir()
        (folder / f"rank-{rank:05d}" / "old").touch()
    return folder


def tree(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def test_a_new_run(tmp_path):
    rank_folder = create(tmp_path / "deep" / "run", rank=1, world_size=2, run_id="job")
    run = tmp_path / "deep" / "run"
    assert rank_folder == run / "rank-00001"
    text = (run / "run.json").read_text()
    assert text.startswith('{"format":"opguard-run","version":1,"run_id":"job","world_size":2,')
    assert read_object(rank_folder / "open.json").items() >= {
        "mode": "trusted", "rank": 1, "version": 1, "fingerprint_version": 1,
    }.items()  # fmt: skip
    assert tree(run) == [
        "rank-00001", "rank-00001/chunks.jsonl", "rank-00001/open.json",
        "rank-00001/strings.jsonl", "run.json",
    ]  # fmt: skip


def test_a_run_that_another_rank_is_creating_is_looked_at_once_it_is_there(tmp_path):
    made = stored_run(tmp_path / "made", "job", 2)
    run = tmp_path / "run"
    run.mkdir()
    with ThreadPoolExecutor(1) as pool:
        with folder_lock(run):
            (run / "run.json").touch()
            checked = pool.submit(check_free, run, 1, 2, "job", False)
            assert not wait([checked], timeout=0.2).done
            (made / "run.json").rename(run / "run.json")
        checked.result(timeout=60)


def test_runs_without_an_id_get_different_ones(tmp_path):
    ids = set()
    for name in "ab":
        create(tmp_path / name)
        ids.add(read_object(tmp_path / name / "run.json")["run_id"])
    assert len(ids) == 2


@pytest.mark.parametrize(
    ("theirs", "their_world", "their_ranks", "mine", "my_world", "joins"),
    [
        ("job", 2, [0], "job", 2, True),
        (RANDOM, 2, [0], None, 2, True),
        ("job", 2, [0], "other", 2, False),
        ("job", 2, [0], None, 2, False),  # whose job it is cannot be told
        (RANDOM, 2, [0], "job", 2, False),
        ("job", 2, [0, 1], "job", 2, False),  # an earlier run of the same name
        ("job", 4, [0], "job", 2, False),
    ],
)
def test_who_joins(tmp_path, theirs, their_world, their_ranks, mine, my_world, joins):
    folder = stored_run(tmp_path / "run", theirs, their_world, *their_ranks)
    before = (folder / "run.json").read_bytes()
    if joins:
        assert create(folder, 1, my_world, mine).is_dir()
    else:
        with pytest.raises(UsageError, match="not empty"):
            create(folder, 1, my_world, mine)
        assert "rank-00001/open.json" not in tree(folder)
    assert (folder / "run.json").read_bytes() == before


def test_a_single_process_joins_nothing(tmp_path):
    folder = stored_run(tmp_path / "run", RANDOM, 1)
    with pytest.raises(UsageError, match="not empty"):
        create(folder)


def test_force_empties_once_and_the_next_rank_joins(tmp_path):
    folder = stored_run(tmp_path / "run", "job", 2, 0, 1)
    (folder / ".rank-00003.17.tmp").mkdir()
    (folder / "notes.txt").write_text("mine")
    create(folder, 1, 2, "job", force=True)
    create(folder, 0, 2, "job", force=True)
    ranks = [
        f"rank-0000{r}/{n}" for r in (0, 1) for n in ("chunks.jsonl", "open.json", "strings.jsonl")
    ]
    assert tree(folder) == sorted(["notes.txt", "rank-00000", "rank-00001", "run.json", *ranks])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("thesis.tex", b"years of work"),
        ("run.json", b'{"epochs": 3}'),
        ("run.json", b"\x00\xff"),
        ("rank-00000", b"a file"),
    ],
)
@pytest.mark.parametrize("force", [False, True])
def test_what_is_no_run_is_never_touched(tmp_path, name, content, force):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=r"only runs" if force else "not empty"):
        create(tmp_path, force=force)
    assert tree(tmp_path) == [name]
    assert (tmp_path / name).read_bytes() == content


def test_force_does_not_follow_links(tmp_path):
    target = stored_run(tmp_path / "target", RANDOM, 1, 0)
    link = tmp_path / "link"
    link.symlink_to(target)
    with pytest.raises(UsageError, match="link"):
        create(link, force=True)
    run = stored_run(tmp_path / "run", RANDOM, 1)
    (run / "rank-00000").symlink_to(target / "rank-00000")
    create(run, force=True)
    assert (target / "rank-00000" / "old").exists()
    assert (run / "rank-00000" / "open.json").exists()


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_file_in_the_place_of_the_folder(tmp_path, below):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="not a folder"):
        create(tmp_path / "file" / below)


@pytest.mark.parametrize("step", ["open", "write", "fsync"])
def test_a_full_disk_leaves_the_folder_as_it_was(tmp_path, monkeypatch, step):
    def no_space(*_args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(files.os, step, no_space)
        with pytest.raises(CaptureError, match=r"cannot write the run to .*No space left"):
            create(tmp_path)
    assert tree(tmp_path) == []
    create(tmp_path)


def test_a_disk_that_fills_up_after_run_json(tmp_path, monkeypatch):
    def read_only(*_args):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(run_folder.Path, "rename", read_only)
    with pytest.raises(CaptureError, match="Permission denied"):
        create(tmp_path)
    assert tree(tmp_path) == []


def _join(folder, rank, force, barrier, answers):
    barrier.wait()
    try:
        create(folder, rank, 4, "job", force=force)
        answers.put("ok")
    except UsageError as error:
        answers.put(str(error))


# From 3.12 on Python warns about every fork of a process with threads, such as numpy's.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("force", [False, True])
def test_ranks_that_start_together_share_one_run(tmp_path, force):
    folder = tmp_path / "run"
    if force:
        stored_run(folder, "yesterday", 4, 0, 1, 2, 3)
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(4), context.SimpleQueue()
    processes = [
        context.Process(target=_join, args=(folder, rank, force, barrier, answers))
        for rank in range(4)
    ]
    for process in processes:
        process.start()
    assert [answers.get() for _ in processes] == ["ok"] * 4
    for process in processes:
        process.join()
    assert json.loads((folder / "run.json").read_text())["run_id"] == "job"
    assert [n for n in tree(folder) if n.endswith("open.json")] == [
        f"rank-0000{rank}/open.json" for rank in range(4)
    ]
    assert not list(folder.rglob("old"))
