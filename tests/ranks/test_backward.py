"""Autograd's private calls: which backward runs, and what happens when it ends."""

import pytest
import torch

from shardlab.ranks import backward


class Hooked:
    """Two parameters whose hooks do as they are told when backward reaches them."""

    def __init__(self, hook):
        self.parameters = [torch.ones(2, requires_grad=True) for _ in range(2)]
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(lambda _: hook() and None)

    def run(self):
        sum(parameter.sum() for parameter in self.parameters).backward()


def test_a_backward_runs_while_it_runs():
    seen = []
    hooked = Hooked(lambda: seen.append(backward.is_running()))
    assert not backward.is_running()
    hooked.run()
    assert seen == [True, True]
    assert not backward.is_running()


def test_a_call_comes_when_all_hooks_have_run():
    log = []

    def hook():
        log.append("hook")
        backward.when_it_ends(lambda: log.append("end"))

    Hooked(hook).run()
    assert log == ["hook", "hook", "end", "end"]


def test_once_in_each_backward_however_many_ask():
    log, once = [], backward.Once()
    hooked = Hooked(lambda: log.append(once.begins(lambda: log.append("end"))))
    hooked.run()
    hooked.run()
    assert log == [True, False, "end"] * 2


def test_a_backward_that_failed_calls_nothing_and_the_next_one_does():
    log, once = [], backward.Once()

    def fail():
        once.begins(lambda: log.append("end"))
        if not log:
            log.append("failed")
            raise RuntimeError("in a hook")

    hooked = Hooked(fail)
    with pytest.raises(RuntimeError, match="in a hook"):
        hooked.run()
    assert log == ["failed"]
    hooked.run()
    assert log == ["failed", "end"]
