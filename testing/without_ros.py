"""A plugin of pytest that skips what needs ROS 2 where there is none: `pytest -p without_ros`."""

import importlib.util
import re

import pytest

MESSAGE = 'needs ROS 2'
# Any module of ROS 2 or of the messages that are built with it.
_MISSING = re.compile(r"No module named '(rclpy|rosidl_\w+|ament_index_python|launch|launch_ros|"
                      r"\w+_msgs|rosgraph_msgs)\b")


def _turned(report: pytest.CollectReport | pytest.TestReport, path: str) -> None:
    if report.outcome == 'failed' and _MISSING.search(str(report.longrepr)):
        report.outcome, report.longrepr = 'skipped', (path, 0, f'Skipped: {MESSAGE}')


if importlib.util.find_spec('rclpy') is None:
    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(collector):  # noqa: D103
        report = yield
        _turned(report, str(collector.path))
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item):  # noqa: D103
        report = yield
        _turned(report, str(item.path))
        return report
