"""Roots of a certificate as findings: what differs, and what leads there."""

from __future__ import annotations

from collections import deque
from typing import Final, Literal

import numpy as np

from opguard.model import (
    STATE_OPERATOR,
    Alignment,
    Bools,
    Certificate,
    RankEvents,
    Root,
    Status,
)
from opguard.report.event_reader import EventReader, Tensor
from opguard.report.result import (
    AgreeingPair,
    Finding,
    GapEvent,
    SideTexts,
    TensorDifference,
)

MOST_GAPS: Final = 8
MOST_BEFORE: Final = 5


class Findings:
    """Builds the findings of one rank."""

    def __init__(
        self, baseline: RankEvents, candidate: RankEvents, certificate: Certificate
    ) -> None:
        self._certificate = certificate
        alignment = certificate.alignment
        self.baseline = EventReader(baseline, _paired(baseline, alignment.baseline))
        self.candidate = EventReader(candidate, _paired(candidate, alignment.candidate))

    def finding(self, root: Root) -> Finding:
        """``root`` in full."""
        a, b = root.baseline_seq, root.candidate_seq
        boundary = self.candidate.boundary(b)
        is_state = boundary.operator == STATE_OPERATOR
        place = self.candidate.place(b)
        outputs = self._differences(a, b, outputs=True)
        return Finding(
            class_name=root.class_name,
            op=boundary.operator,
            module=boundary.module,
            phase=boundary.phase,
            step=int(self.candidate.run.step[b]),
            rank=self._certificate.rank,
            occurrence=place.occurrence,
            slots=root.slots,
            arguments=SideTexts(self.baseline.arguments(a), self.candidate.arguments(b)),
            baseline=self.baseline.place(a),
            candidate=place,
            tensors=tuple(outputs),
            inputs=() if is_state else tuple(self._differences(a, b, outputs=False)),
            gaps=self._gaps(root) if root.class_name == "structural" else (),
            count=root.count,
            note=root.note,
        )

    def agreed_before(self, root: Root) -> tuple[AgreeingPair, ...]:
        """The last pairs that agreed before ``root``."""
        alignment, status = self._certificate.alignment, self._certificate.status
        end = int(np.searchsorted(alignment.candidate, root.candidate_seq))
        agreeing = np.flatnonzero(status[:end] == Status.AGREES)[-MOST_BEFORE:]
        return tuple(self._agreeing(alignment, int(pair)) for pair in agreeing)

    def _agreeing(self, alignment: Alignment, pair: int) -> AgreeingPair:
        seq = int(alignment.candidate[pair])
        boundary, place = self.candidate.boundary(seq), self.candidate.place(seq)
        return AgreeingPair(
            op=boundary.operator,
            module=boundary.module,
            phase=boundary.phase,
            step=int(self.candidate.run.step[seq]),
            occurrence=place.occurrence,
            baseline_seq=int(alignment.baseline[pair]),
            candidate_seq=seq,
            file=place.file,
            line=place.line,
        )

    def _differences(self, a: int, b: int, outputs: bool) -> list[TensorDifference]:
        """Slots of one direction that differ, as far as they can be compared."""
        left, right = self.baseline.tensors(a, outputs), self.candidate.tensors(b, outputs)
        found = []
        for slot in {**right, **left}:
            one, two = left.get(slot), right.get(slot)
            if _differ(one, two):
                found.append(self._difference(slot, one, two))
        return found

    def _difference(self, slot: str, one: Tensor | None, two: Tensor | None) -> TensorDifference:
        shown = two or one
        assert shown is not None  # noqa: S101 - the slot came from one of them
        regions: tuple[int, ...] = ()
        values = None
        if one is not None and two is not None:
            pieces = self.baseline.regions(one.index), self.candidate.regions(two.index)
            if pieces[0] is not None and pieces[1] is not None:
                regions = tuple(i for i in range(8) if pieces[0][i] != pieces[1][i])
            texts = self.baseline.values(one), self.candidate.values(two)
            if texts[0] is not None and texts[1] is not None:
                values = texts[0], texts[1]
        return TensorDifference(
            slot=slot,
            dtype=shown.dtype,
            shape=shown.shape,
            mix64=(one.mix64 if one else None, two.mix64 if two else None),
            regions_differ=regions,
            baseline_dtype=(one or shown).dtype,
            baseline_shape=(one or shown).shape,
            values=values,
        )

    def _gaps(self, root: Root) -> tuple[GapEvent, ...]:
        """Events of one side only behind the inputs that differ, nearest first.

        Behind all inputs where none could be compared.
        """
        left = self.baseline.sources(root.baseline_seq)
        right = self.candidate.sources(root.candidate_seq)
        differing = {slot for slot in {**left, **right} if _differ(left.get(slot), right.get(slot))}
        slots = differing or {*left, *right}
        nearest = [
            self._gaps_behind("baseline", left, slots),
            self._gaps_behind("candidate", right, slots),
        ]
        half = MOST_GAPS // 2
        room = [MOST_GAPS - min(len(nearest[1]), half), MOST_GAPS - min(len(nearest[0]), half)]
        return tuple(gap for gaps, most in zip(nearest, room, strict=True) for gap in gaps[:most])

    def _gaps_behind(
        self,
        side: Literal["baseline", "candidate"],
        inputs: dict[str, Tensor],
        slots: set[str],
    ) -> list[GapEvent]:
        reader: EventReader = getattr(self, side)
        waiting = deque(tensor.index for slot, tensor in inputs.items() if slot in slots)
        seen: set[int] = set()
        found: list[GapEvent] = []
        while waiting and len(found) < MOST_GAPS:
            for producer in reader.producers(waiting.popleft()):
                seq = reader.event_of(producer)
                if reader.paired[seq] or seq in seen:
                    continue
                seen.add(seq)
                boundary = reader.boundary(seq)
                found.append(
                    GapEvent(
                        side,
                        boundary.operator,
                        boundary.module,
                        boundary.phase,
                        int(reader.run.step[seq]),
                        reader.place(seq),
                    )
                )
                waiting.extend(tensor.index for tensor in reader.sources(seq).values())
        return found[:MOST_GAPS]


def _paired(run: RankEvents, events: np.ndarray) -> Bools:
    paired = np.zeros(run.event_count, np.bool_)
    paired[events] = True
    return paired


def _differ(one: Tensor | None, two: Tensor | None) -> bool:
    """Two records of one slot differ; what cannot be compared does not."""
    if one is None or two is None:
        shown = one or two
        return shown is not None and shown.mix64 is not None
    if (one.dtype, one.shape) != (two.dtype, two.shape):
        return True
    if one.mix64 is None or two.mix64 is None:
        return False
    comparable = one.via == two.via and (not one.via or one.strides == two.strides)
    return comparable and one.mix64 != two.mix64
