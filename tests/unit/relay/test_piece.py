"""How many rows one statement settles, after one took too long."""

from __future__ import annotations

from outboxrelay.stores.piece import Piece

IDS = list(range(100))


def test_a_batch_is_one_piece() -> None:
    piece = Piece(rows=100, seconds=10)
    assert piece.of(IDS, start=0) is IDS
    piece.took(1, rows=100, gone=100)
    assert piece.of(IDS, start=0) is IDS


def test_pieces_shrink_until_one_is_quick_enough_and_no_further_than_one_row() -> None:
    piece = Piece(rows=100, seconds=10)
    for wanted in (25, 6, 1, 1):
        piece.took_too_long(len(piece.of(IDS, start=0)))
        assert piece.of(IDS, start=0) == IDS[:wanted]
    assert piece.of(IDS, start=99) == [99]


def test_pieces_grow_while_there_is_time_and_rows_were_there() -> None:
    piece = Piece(rows=100, seconds=10)
    piece.took_too_long(100)
    piece.took(9, rows=25, gone=25)
    piece.took(1, rows=25, gone=24)
    assert len(piece.of(IDS, start=0)) == 25
    piece.took(1, rows=25, gone=25)
    assert piece.of(IDS, start=25) == IDS[25:75]
    piece.took(1, rows=50, gone=50)
    assert piece.of(IDS, start=0) is IDS
