"""Reports whose tables can be stacked in a narrow window."""

from __future__ import annotations

from reranker.figures import stacked_tables

HEAD = '<tr><th>query</th><th class="n">live &amp; old</th><th></th></tr>'


def test_each_cell_gets_the_name_of_its_column() -> None:
    page = (
        f'<p>a</p><table>\n{HEAD}\n<tr class="x"><th scope="row">q</th><td class="n">1</td><td>kept</td></tr></table>'
    )
    assert stacked_tables(page) == (
        '<p>a</p><table class="stack">\n'
        '<tr class="heads"><th>query</th><th class="n">live &amp; old</th><th></th></tr>\n'
        '<tr class="x"><th data-label="query" scope="row">q</th><td data-label="live &amp; old" class="n">1</td>'
        '<td data-label="">kept</td></tr></table>'
    )


def test_tables_that_fit_or_have_no_names_are_not_changed() -> None:
    two = "<table><tr><th>word</th><th>nearest</th></tr><tr><td>a</td><td>b</td></tr></table>"
    plain = "<table><tr><td>a</td><td>b</td><td>c</td></tr></table>"
    for page in (two, plain, "<p>no table</p>", "<table></table>"):
        assert stacked_tables(page) == page


def test_a_text_that_looks_like_a_table_stays_text() -> None:
    page = "<td>&lt;table&gt;&lt;tr&gt;&lt;th&gt;a&lt;/th&gt;&lt;/tr&gt;&lt;/table&gt;</td>"
    assert stacked_tables(page) == page
