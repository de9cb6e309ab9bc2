"""Campaigns are cut into pieces, go on where they stopped, and write their table."""

import sys

from crash import campaigns
from crash.campaigns import Campaign, Piece, counts_of, pieces, run, table, write
from samples.made_tables import marks

BEGIN, END = marks("campaigns")

REPORT = "print('[1/2 3 s] 9 confirmed'); print('small: 2 cycles, 1,234 confirmed, 0 lost')"
SMALL = Campaign("small", 5, 2, lambda _count, _number: ("-c", REPORT), ("confirmed", "lost"))


def test_pieces_make_up_the_whole():
    """A campaign's pieces do as much as was asked for, the last one the rest."""
    assert [2, 2, 1] == [piece.count for piece in pieces(SMALL, 5)]
    assert [0, 1, 2] == [piece.number for piece in pieces(SMALL, 5)]


def test_every_campaign_has_a_program():
    """The program that each campaign names is there."""
    for campaign in campaigns.CAMPAIGNS:
        assert (campaigns.ROOT / campaign.words(1, 0)[0]).is_file(), campaign.name


def test_reports_are_counted():
    """Numbers of a report are summed by the words behind them, and those of progress lines left out."""
    log = "[1/2] kill 1: 5 confirmed\na: 1,000 confirmed, 2 out of order\na: 10 confirmed\n3.5 s"

    assert {"confirmed": 1010, "out of order": 2} == counts_of(log)


def test_a_run_keeps_what_it_did(tmp_path):
    """A piece's exit code and counts are kept beside its log, and a piece that is kept is not run again."""
    piece = Piece(SMALL, 0, 2)
    assert not campaigns._is_done(piece, tmp_path, again=False)

    kept = run(piece, tmp_path, "abc")

    assert (0, 1234) == (kept["exit"], kept["counts"]["confirmed"])
    assert campaigns._is_done(piece, tmp_path, again=True)
    assert not campaigns._is_done(Piece(SMALL, 1, 2), tmp_path, again=False)


def test_a_piece_that_failed_is_run_again_when_asked_for(tmp_path):
    """A failed piece is kept until another try is asked for."""
    piece = Piece(Campaign("bad", 1, 1, lambda *_: ("-c", "raise SystemExit(1)"), ()), 0, 1)
    run(piece, tmp_path, "abc")

    assert campaigns._is_done(piece, tmp_path, again=False)
    assert not campaigns._is_done(piece, tmp_path, again=True)


def test_a_piece_that_says_nothing_is_killed(tmp_path):
    """A piece that hangs is killed with what it has started, and counts as failed."""
    program = (
        f"import subprocess; subprocess.run([{sys.executable!r}, '-c', 'import time; time.sleep(1000)'])"
    )
    piece = Piece(Campaign("hangs", 1, 1, lambda *_: ("-c", program), ()), 0, 1)

    kept = run(piece, tmp_path, "abc", stall=0.5)

    assert -9 == kept["exit"]
    assert "killed: nothing was written" in piece.kept(tmp_path, ".log").read_text()


def test_the_table_is_written_between_its_marks(tmp_path):
    """The page around the marks stays, and the table sums up all pieces."""
    for piece in pieces(SMALL, 5):
        run(piece, tmp_path, "abc")
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")

    write(page, table(tmp_path, (SMALL,)))

    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert "| small | 5 of 5 | 3,702 confirmed, 0 lost | 0 of 3 pieces |" in text


def test_the_page_has_the_marks():
    """docs/reliability.md has a place for the table."""
    text = campaigns.PAGE.read_text(encoding="utf-8")

    assert text.index(BEGIN) < text.index(END)
