"""Who is taken for a robot, in plain Python: the definition of the SQL step ``robots``."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from reranker.clicks.joining import Search, Touches
from reranker.clicks.pair_config import RobotRules

_DAY_MS = 86_400_000


def find_robots(searches: Mapping[str, Search], touches: Touches, rules: RobotRules | None) -> dict[str, str]:
    """Return the reason of each query of a robot: an agent's name, or clicks as people do not make them.

    A visit with too many or too fast clicks is left out alone; a robot's agent, too many clicks a day, and one
    document clicked over and over (whatever was searched) speak against the person.
    """
    if rules is None:
        return {}
    visits = _visit_reasons(searches, touches, rules)
    agents = {one.person for one in searches.values() if one.agent}
    busy, repeating = _busy_people(searches, touches, rules), _repeating_people(searches, touches, rules)
    found = {}
    for query_id, one in searches.items():
        if one.person in agents:
            found[query_id] = "robot_agent"
        elif one.visit in visits:
            found[query_id] = visits[one.visit]
        elif one.person in busy:
            found[query_id] = "robot_day_clicks"
        elif one.person in repeating:
            found[query_id] = "robot_one_document"
    return found


def _visit_reasons(searches: Mapping[str, Search], touches: Touches, rules: RobotRules) -> dict[str, str]:
    times: dict[str, list[int | None]] = defaultdict(list)
    for query_id, found in touches.items():
        times[searches[query_id].visit] += [touch.time for touch in found.values() if touch.clicked]
    reasons = {}
    for visit, all_times in times.items():
        timed = [time for time in all_times if time is not None]
        if len(all_times) > rules.session_clicks:
            reasons[visit] = "robot_session_clicks"
        elif len(timed) >= rules.speed_clicks:
            if max(timed) - min(timed) < round(rules.min_gap_s * 1000) * (len(timed) - 1):
                reasons[visit] = "robot_speed"
    return reasons


def _busy_people(searches: Mapping[str, Search], touches: Touches, rules: RobotRules) -> set[str]:
    clicks: Counter[tuple[str, int | None]] = Counter()
    for query_id, found in touches.items():
        one = searches[query_id]
        day = None if one.time is None else one.time // _DAY_MS
        clicks[one.person, day] += sum(touch.clicked for touch in found.values())
    return {person for (person, _), n in clicks.items() if n > rules.day_clicks}


def _repeating_people(searches: Mapping[str, Search], touches: Touches, rules: RobotRules) -> set[str]:
    clicks: dict[str, Counter[str]] = defaultdict(Counter)
    for query_id, found in touches.items():
        clicks[searches[query_id].person].update(name for name, touch in found.items() if touch.clicked)
    repeating = set()
    for person, counts in clicks.items():
        n = counts.total()
        collisions = sum(count * count for count in counts.values())
        if n >= rules.repeat_clicks and float(collisions) > 2.0**-rules.min_entropy_bits * n * n:
            repeating.add(person)
    return repeating
