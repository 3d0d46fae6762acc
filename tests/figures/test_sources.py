"""Sources become links: words lead to the first address, and addresses become names of sites."""

from shardlab.figures.sources import linked, site, spelled
from shardlab.figures.table import table

SOURCE = "Brown & al. 2020, Table 2.1 (https://arxiv.org/abs/2005.14165); https://www.nvidia.com/h100/#specs, dense."


def test_words_lead_to_the_first_address():
    assert linked("GPT <3>", SOURCE).data == (
        '<a class="reference external" href="https://arxiv.org/abs/2005.14165">GPT &lt;3&gt;</a>'
    )
    assert linked("a & b", "by hand").data == "a &amp; b"


def test_addresses_become_names_of_sites_and_the_rest_stays():
    text = spelled(SOURCE).data
    assert text.startswith("Brown &amp; al. 2020, Table 2.1 (<a ")
    assert '(<a class="reference external" href="https://arxiv.org/abs/2005.14165">arxiv.org</a>); ' in text
    assert 'href="https://www.nvidia.com/h100/#specs">nvidia.com</a>, dense.' in text
    assert spelled("by `<hand>`").data == "by <code>&lt;hand&gt;</code>"
    assert site("https://www.nvidia.com/x") == "nvidia.com"


def test_a_link_stands_in_a_table_as_it_is():
    text = table([["chip", "GB"], [linked("H100", SOURCE), 80]]).data
    assert f'<td style="text-align: left">{linked("H100", SOURCE).data}</td>' in text
    assert '<td style="text-align: right">80</td>' in text
