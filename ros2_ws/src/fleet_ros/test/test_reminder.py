"""The message of a reminder is due at once, and then at growing intervals."""

from fleet_ros.reminder import Reminder


def test_a_reminder_comes_at_once_and_then_more_rarely():
    reminder = Reminder()
    said = [t for t in range(300) if reminder.due(t)]
    assert said == [0, 5, 15, 35, 75, 135, 195, 255]


def test_a_reminder_begins_anew_after_a_reset():
    reminder = Reminder()
    assert [reminder.due(t) for t in (0, 1)] == [True, False]
    reminder.reset()
    assert reminder.due(2) and not reminder.due(6) and reminder.due(7)
