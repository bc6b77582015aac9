from __future__ import annotations

import pytest

from opguard.frames import user_frame

LIBRARY = [
    "/usr/lib/python3.11/contextlib.py",
    "/home/me/.pyenv/versions/3.11.7/lib/python3.11/runpy.py",
    "/home/me/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py",
    "/usr/lib/python3/dist-packages/numpy/core.py",
    "/home/me/src/pytorch/torch/nn/functional.py",
    "/home/me/src/pytorch/torch/_tensor.py",
    "/home/me/opguard/src/opguard/capture/dispatch.py",
    "/home/me/opguard/src/opguard/api.py",
    "C:\\venv\\Lib\\site-packages\\torch\\_ops.py",
    "<frozen runpy>",
]
OWN = [
    "/home/me/train.py",
    "train.py",
    "/home/me/torch/train.py",
    "/home/me/project/model/torch_utils.py",
    "/home/me/opguard/examples/train_gpt/train.py",
    "<stdin>",
]


@pytest.mark.parametrize("path", LIBRARY)
def test_library_frames_are_passed_over(path: str) -> None:
    mine = ("/home/me/train.py", 3, "main")
    assert user_frame([(path, 1, "f"), mine]) == mine


@pytest.mark.parametrize("path", OWN)
def test_the_innermost_own_frame(path: str) -> None:
    assert user_frame([(LIBRARY[0], 1, "f"), (path, 2, "g"), ("outer.py", 3, "h")]) == (
        path,
        2,
        "g",
    )


def test_without_an_own_frame_the_innermost() -> None:
    assert user_frame([(LIBRARY[1], 7, "f"), (LIBRARY[0], 8, "g")]) == (LIBRARY[1], 7, "f")
    assert user_frame([]) == ("", 0, "")
