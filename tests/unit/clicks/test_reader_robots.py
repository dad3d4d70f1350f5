"""Robots are told by the user agent they state."""

from __future__ import annotations

import time

import pytest

from reranker.clicks import values
from reranker.clicks.values import ValueCache, robot_name

PEOPLE = [
    "",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130.0.0.0 Safari/537.36",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 17_6 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Mobile/15E148",
    "Mozilla/5.0 (X11; Linux x86_64; rv:131.0) Gecko/20100101 Firefox/131.0",
    "Opera/9.80 (Windows NT 6.1; WOW64) Presto/2.12.388 Version/12.18",
]
ROBOTS = {
    "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)": "Googlebot",
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 HeadlessChrome/120.0 Safari/537.36": "HeadlessChrome",
    "curl/8.4.0": "curl",
    "python-requests/2.31.0": "python-requests",
    "Mozilla/5.0 (compatible; AhrefsBot/7.0; +http://ahrefs.com/robot/)": "Ahrefs Bot SiteAudit",
}


@pytest.mark.parametrize("agent", PEOPLE)
def test_browsers_are_people(agent: str) -> None:
    assert robot_name(agent) == ""


@pytest.mark.parametrize("agent", ROBOTS)
def test_known_robots_have_a_name(agent: str) -> None:
    assert robot_name(agent) == ROBOTS[agent]


def test_all_examples_of_the_list_are_found() -> None:
    import crawleruseragents

    examples = [one for robot in crawleruseragents.CRAWLER_USER_AGENTS_DATA for one in robot["instances"]]
    assert len(examples) > 1000
    assert [one for one in examples if not robot_name(one)] == []
    for agent in [*examples[::25], *PEOPLE]:
        assert bool(robot_name(agent)) == crawleruseragents.is_crawler(agent)


def test_what_is_remembered_is_bounded_and_long_agents_take_no_long_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "_MAX_KNOWN", 5)
    known = ValueCache(robot_name)
    started = time.process_time()
    for number in range(50):
        agent = f"agent {number} " + "Spider " * 100_000
        assert known[agent] == known[agent]
        assert len(known) <= 5
    assert time.process_time() - started < 5
