from opguard.report.explain import environment_first
from opguard.report.result import Environment


def test_other_facts_of_the_environment_lead_too():
    names = ("a", "b", "c", "d")
    environment = Environment(dict.fromkeys(names, 1), {}, names)
    assert environment_first("origin", environment) == (
        "The two runs ran in different environments: a 1 against not set, b 1 against not set, "
        "c 1 against not set, 1 more: that alone may change bits."
    )
    assert environment_first("origin", Environment({"a": 1}, {"a": 1})) == ""
