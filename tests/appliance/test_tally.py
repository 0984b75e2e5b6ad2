"""What frontends count, together and one after the other."""

from pathlib import Path

from dualpace.appliance.tally import FAMILIES, FINISHED, GENERATED_TOKENS, ITL, Tally

from .documented import HEAD, PAGE, table


def test_frontends_that_share_rings_say_the_same(tmp_path: Path):
    rings = tmp_path / "rings"
    first, second = Tally(rings, 0), Tally(rings, 1)
    first.add(GENERATED_TOKENS, 3)
    second.add(GENERATED_TOKENS, 4)
    second.add(FINISHED, value="length")
    second.observe(ITL, ITL.bounds[2])
    assert first.totals() == second.totals()
    assert first.totals()[GENERATED_TOKENS.name] == [7]
    assert first.totals()[FINISHED.name] == [0, 1, 0, 0]
    assert first.totals()[ITL.name][:4] == [0, 0, 1, 0]
    assert Tally(tmp_path / "others", 0).totals()[GENERATED_TOKENS.name] == [0]


def test_a_frontend_that_is_started_again_counts_on(tmp_path: Path):
    for _ in range(2):
        tally = Tally(tmp_path / "rings", 0)
        tally.add(GENERATED_TOKENS, 5)
    assert tally.totals()[GENERATED_TOKENS.name] == [10]


def test_what_lies_above_the_last_bound_is_counted(tmp_path: Path):
    tally = Tally()
    tally.observe(ITL, 2 * ITL.bounds[-1])
    *below, above, total = tally.totals()[ITL.name]
    assert (sum(below), above, total) == (0, 1, 2 * ITL.bounds[-1])


def test_families_have_cells_of_their_own():
    tally = Tally()
    for family in FAMILIES:
        assert set(tally.totals()[family.name]) == {0}
        if family.cells == 1:
            tally.add(family)
    assert sum(sum(cells) for cells in tally.totals().values()) == sum(family.cells == 1 for family in FAMILIES)


def test_the_page_of_metrics_has_them_all():
    assert PAGE.read_text(encoding="utf-8").partition(HEAD)[2] == table()
