"""Bad input: one clear line, the documented exit code, nothing lost and nothing half-written."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import opguard
from bad_programs import CHILDREN, FULL, PROGRAM
from captured import read
from opguard.api import OpguardWarning
from opguard.cli.main import main
from opguard.store.files import encode_object, sha256
from program import run_program

Capsys = pytest.CaptureFixture[str]

ENDS = {"whole": 0, "raise": 1, "exit": 3, "interrupt": 130, "kill": -9}


def said(capsys: Capsys) -> str:
    """The one line on stderr."""
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("opguard: error: ")
    assert captured.err.count("\n") == 1
    return captured.err


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs that ended in each way; all but ``whole`` multiply by 3, and not by 2."""
    folder = tmp_path_factory.mktemp("ended")
    script = write(folder / "s.py", PROGRAM)
    runs = {}
    for end, code in ENDS.items():
        runs[end] = folder / end
        factor = "2" if end == "whole" else "3"
        chunks = str(runs[end] / "rank-00000" / "chunks.jsonl")
        done = run_program(["run", "-o", str(runs[end]), script, factor, end, chunks])
        assert done.returncode == code, (end, done.stderr)
        assert done.stdout == ("end\n" if end == "whole" else "")
        lines = done.stderr.splitlines()
        assert lines[-1:] == {"raise": ["ValueError: bad luck"], "interrupt": ["KeyboardInterrupt"]}.get(end, [])  # fmt: skip # noqa: E501
        assert "opguard" not in done.stderr
    return runs


@pytest.mark.parametrize("end", ["raise", "exit", "interrupt", "kill"])
def test_a_divergence_is_named_however_the_program_ended(
    ended: dict[str, Path], end: str, capsys: Capsys
) -> None:
    partial = end != "exit"
    for pair in ((ended["whole"], ended[end]), (ended[end], ended["whole"])):
        assert main(["compare", *map(str, pair)]) == 1
        report = capsys.readouterr().out
        assert "first divergent op: aten.mul.Tensor" in report
        assert ("partial" in report or "before it was closed" in report) == partial, report
        assert main(["compare", *map(str, pair), "--json"]) == 1
        result = json.loads(capsys.readouterr().out)
        assert result["pivot"]["occurrence"] == 10
        assert ("PARTIAL" in result["reasons"]) == partial
    assert main(["show", str(ended[end])]) == 0
    assert ("partial" in capsys.readouterr().out) == partial


@pytest.mark.parametrize("end", ["raise", "interrupt", "kill"])
def test_a_partial_run_is_never_identical_even_to_itself(
    ended: dict[str, Path], end: str, capsys: Capsys
) -> None:
    assert main(["compare", str(ended[end]), str(ended[end])]) == 4
    report = capsys.readouterr().out
    assert report.startswith("opguard: inconclusive (PARTIAL, exit code 4)")


def test_an_exit_code_of_the_program_closes_the_run(ended: dict[str, Path], capsys: Capsys) -> None:
    assert main(["compare", str(ended["exit"]), str(ended["exit"])]) == 0
    (rank,) = read(ended["exit"])
    assert rank.header["close"]["exit_code"] == 3
    capsys.readouterr()


@pytest.mark.parametrize("verb", [["compare"], ["show"], ["dump"]])
def test_what_is_no_run(tmp_path: Path, verb: list[str], capsys: Capsys) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run.txt").write_text("x")
    (tmp_path / "file").write_text("x")
    for name in ("missing", "empty", "other", "file", "file/below"):
        folders = [str(tmp_path / name)] * (2 if verb == ["compare"] else 1)
        assert main([*verb, *folders]) == 2, name
        assert str(tmp_path / name.partition("/")[0]) in said(capsys)
        if verb == ["compare"]:
            assert main(["compare", *folders, "--json"]) == 2
            assert json.loads(capsys.readouterr().out)["exit_code"] == 2


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small closed run by capture itself."""
    folder = tmp_path_factory.mktemp("real") / "run"
    with opguard.capture(folder):
        layer = torch.nn.Linear(200, 100)
        layer(torch.randn(3, 200)).sum().backward()
    return folder


def test_a_flipped_byte_or_a_cut_in_each_file(real: Path, tmp_path: Path, capsys: Capsys) -> None:
    files = [path.relative_to(real) for path in sorted(real.rglob("*")) if path.is_file()]
    assert len(files) >= 7
    for number, name in enumerate(files):
        for how in ("flip", "cut", "empty", "missing"):
            copy = tmp_path / f"{number}-{how}"
            shutil.copytree(real, copy)
            data = bytearray((copy / name).read_bytes())
            if how == "flip":
                data[len(data) // 2] ^= 4
            if how == "missing":
                (copy / name).unlink()
            else:
                (copy / name).write_bytes({"flip": data, "cut": data[:-7], "empty": b""}[how])
            for pair in ((real, copy), (copy, real), (copy, copy)):
                code = main(["compare", *map(str, pair)])
                # Without run.json it is no run; without close.json it is a run that was cut off.
                if how == "missing" and name.name == "run.json":
                    assert code == 2, (name, how)
                elif how == "missing" and name.name == "close.json":
                    assert code == 4, (name, how)
                    assert "PARTIAL" in capsys.readouterr().out
                    continue
                else:
                    assert code == 5, (name, how)
                    assert name.name in said(capsys)
                    continue
                said(capsys)


def edit(path: Path, line: int = 0, **changes: object) -> None:
    """Change members of a stored object; its own digest fits again."""
    lines = path.read_bytes().splitlines(keepends=True)
    value = json.loads(lines[line])
    del value["digest"]
    lines[line] = encode_object(value | changes)
    path.write_bytes(b"".join(lines))


@pytest.mark.parametrize("name", ["run.json", "rank-00000/open.json"])
def test_a_newer_version(real: Path, tmp_path: Path, name: str, capsys: Capsys) -> None:
    shutil.copytree(real, tmp_path / "newer")
    version = json.loads((real / name).read_text())["version"]
    edit(tmp_path / "newer" / name, version=version + 1)
    for pair in ((real, tmp_path / "newer"), (tmp_path / "newer", real)):
        assert main(["compare", *map(str, pair)]) == 5
        text = said(capsys)
        assert Path(name).name in text
        assert str(version + 1) in text


def test_a_chunk_that_claims_gigabytes(real: Path, tmp_path: Path, capsys: Capsys) -> None:
    shutil.copytree(real, tmp_path / "huge")
    rank = tmp_path / "huge" / "rank-00000"
    (rank / "close.json").unlink()  # so that the digest of the line is the only one to forge
    chunk = rank / "chunk-000000.npz"
    with zipfile.ZipFile(chunk) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(chunk, "w") as archive:
        for name, data in members.items():
            if name == "mix64.npy":
                shape = re.search(rb"'shape': \(\d+,\), }", data)
                assert shape is not None
                text = b"'shape': (4294967296,), }"
                data = data.replace(shape[0] + b" " * (len(text) - len(shape[0])), text)  # noqa: PLW2901
                assert text in data
            archive.writestr(name, data)
    data = chunk.read_bytes()
    edit(rank / "chunks.jsonl", bytes=len(data), sha256=sha256(data))
    assert main(["compare", str(tmp_path / "huge"), str(real)]) == 5
    text = said(capsys)
    assert "chunk-000000.npz" in text
    assert "4294967296" in text


def test_different_ranks_and_a_run_without_events(
    real: Path, tmp_path: Path, capsys: Capsys
) -> None:
    with opguard.capture(tmp_path / "none"):
        pass
    with opguard.capture(tmp_path / "nothing"):
        torch.ones(3).view(3)[:1]
    assert main(["compare", str(tmp_path / "none"), str(tmp_path / "none")]) == 4
    assert "inconclusive" in capsys.readouterr().out
    for pair in (("none", "nothing"), ("nothing", "none")):
        assert main(["compare", *(str(tmp_path / name) for name in pair)]) in (1, 4)
    assert main(["compare", str(tmp_path / "none"), str(real)]) in (1, 4)
    assert main(["show", str(tmp_path / "none")]) == 0
    two = tmp_path / "two"
    shutil.copytree(real, two)
    edit(two / "run.json", world_size=2)
    capsys.readouterr()
    assert main(["compare", str(real), str(two)]) == 3
    assert "(RANKS, exit code 3)" in capsys.readouterr().out
    assert main(["compare", str(two), str(two)]) == 4
    assert "(UNCAPTURED_RANK, exit code 4)" in capsys.readouterr().out


def test_a_program_without_torch_or_without_operators(tmp_path: Path, capsys: Capsys) -> None:
    script = write(tmp_path / "s.py", "print('no torch here')\n")
    for name in "ab":
        done = run_program(["run", "-o", str(tmp_path / name), script])
        assert (done.returncode, done.stdout, done.stderr) == (0, "no torch here\n", "")
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 4
    assert capsys.readouterr().out.startswith("opguard: inconclusive (")


def test_a_folder_in_use(real: Path, tmp_path: Path, capsys: Capsys) -> None:
    """Refused without a change; --force empties a run and nothing else."""
    used = tmp_path / "used"
    shutil.copytree(real, used)
    before = {path: path.read_bytes() for path in used.rglob("*") if path.is_file()}
    with pytest.raises(opguard_error("UsageError"), match="--force"), opguard.capture(used):
        pass
    assert {path: path.read_bytes() for path in used.rglob("*") if path.is_file()} == before
    with opguard.capture(used, force=True):
        torch.ones(2).sin()
    assert read(used)[0].names == ["ones", "sin"]
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("x")
    with pytest.raises(opguard_error("UsageError")), opguard.capture(precious, force=True):
        pass
    assert [path.name for path in precious.iterdir()] == ["thesis.tex"]


def opguard_error(name: str) -> type[Exception]:
    error: type[Exception] = getattr(sys.modules["opguard.errors"], name)
    return error


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    unwritable = Path("/proc/no-such") if os.geteuid() == 0 else closed / "run"
    script = write(
        tmp_path / "s.py", "print('started'); import torch; torch.ones(1); print('on')\n"
    )
    for where, code in ((tmp_path / "file", 2), (tmp_path / "file" / "x", 2), (unwritable, 6)):
        done = run_program(["run", "-o", str(where), script])
        assert done.returncode == code, (where, done.stderr)
        assert done.stderr.startswith("opguard: error: ")
        assert done.stderr.count("\n") == 1
        assert "on" not in done.stdout.split()
    assert (tmp_path / "file").read_text() == "x"


def test_a_full_disk_stops_capture_and_not_the_program(tmp_path: Path, capsys: Capsys) -> None:
    script = write(tmp_path / "s.py", FULL)
    done = run_program(["run", "-o", str(tmp_path / "run"), script])
    assert (done.returncode, done.stdout) == (5, "20000.0\n")
    assert done.stderr.startswith("opguard: capture stopped, the run stays partial: ")
    assert done.stderr.count("\n") == 1
    assert "defect" not in done.stderr
    assert not list((tmp_path / "run").rglob("*.tmp"))
    assert main(["compare", str(tmp_path / "run"), str(tmp_path / "run")]) in (4, 5)
    capsys.readouterr()


def test_not_a_number_and_infinity_everywhere(tmp_path: Path) -> None:
    def program(fill: float) -> None:
        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 3)
        with torch.no_grad():
            layer.weight.fill_(fill)
        opt = torch.optim.AdamW(layer.parameters())
        for _ in range(2):
            layer(torch.full((2, 3), fill)).sum().backward()
            opt.step()

    for name, fill in (("a", float("nan")), ("b", float("nan")), ("c", float("inf"))):
        with opguard.capture(tmp_path / name, mode="full"):
            program(fill)
    assert opguard.compare(tmp_path / "a", tmp_path / "b").verdict == "identical"
    assert opguard.compare(tmp_path / "a", tmp_path / "c").verdict == "diverged"


def test_meta_and_fake_tensors(tmp_path: Path) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    for name in "ab":
        with opguard.capture(tmp_path / name):
            torch.nn.Linear(4, 4, device="meta")(torch.ones(2, 4, device="meta"))
            with FakeTensorMode():
                layer = torch.nn.Linear(4, 4)
                layer(torch.randn(2, 4)).sum().backward()
                torch.optim.SGD(layer.parameters()).step()
            real = torch.nn.Linear(2, 2, device="meta").to_empty(device="cpu")
            with torch.no_grad():
                for parameter in real.parameters():
                    parameter.fill_(0.5)
            real(torch.ones(1, 2))
    result = opguard.compare(tmp_path / "a", tmp_path / "b")
    assert result.verdict == "identical", result.reasons
    assert "addmm" in read(tmp_path / "a")[0].names


def test_forks_spawns_and_runs_inside_runs(tmp_path: Path) -> None:
    script = write(tmp_path / "s.py", CHILDREN)
    inner = write(tmp_path / "inner.py", "import torch; torch.ones(2).cos(); raise SystemExit(4)\n")
    inside, apart = tmp_path / "inside", tmp_path / "apart"
    done = run_program(["run", "-o", str(tmp_path / "run"), script, str(inside), str(apart), inner])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["child 6.0", "7 3.0", "5.0", "inside 2", "apart 4"]
    assert done.stderr.count("\n") == 1
    assert "opguard run inside opguard run" in done.stderr
    assert not inside.exists()
    assert read(apart)[0].names == ["ones", "cos"]
    (rank,) = read(tmp_path / "run")
    assert rank.names == ["arange", "sum", "_local_scalar_dense", "sin"]
    assert not rank.header["partial"]
    assert rank.coverage["uncaptured_processes"] == 3


def test_a_defect_exits_70(real: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr("opguard.align.aligner.align", broken)
    assert main(["compare", str(real), str(real)]) == 70
    assert "internal error" in said(capsys)
    for place in (["--debug", "compare"], ["compare", "--debug"]):
        assert main([*place, str(real), str(real)]) == 70
        error = capsys.readouterr().err
        assert "Traceback" in error
        assert "KeyError: 'lost'" in error


def sum_with_a_defect(folder: Path) -> torch.Tensor:
    from opguard.capture.dispatch import Dispatch
    from opguard.capture.session import CaptureSession

    with opguard.capture(folder, mechanism="dispatch"):
        x = torch.ones(2)
        x = x + 1
        session = CaptureSession.active()
        assert session is not None
        assert isinstance(session._mechanism, Dispatch)
        session._mechanism.recorder._returns.clear()  # raises inside of capture, as a defect would
        for _ in range(4):
            x = x + 1
    return x


def test_a_defect_of_capture_stops_capture_and_not_the_program(tmp_path: Path) -> None:
    with pytest.warns(OpguardWarning, match="partial: a defect in opguard: IndexError"):
        x = sum_with_a_defect(tmp_path / "run")
    assert x.tolist() == [6.0, 6.0]
    assert read(tmp_path / "run")[0].names == ["ones", "add"]
    result = opguard.compare(tmp_path / "run", tmp_path / "run")
    assert (result.verdict, result.reason_code) == ("inconclusive", "PARTIAL")
