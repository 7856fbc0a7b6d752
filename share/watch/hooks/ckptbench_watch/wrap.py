"""Wraps functions so that a hook that fails harms nobody: it is reported, and all hooks are off from then on."""
import functools

from .recorder import current, watch


def around(owner, name, before, after=None):
    """Replaces owner.name. `before(args, kwargs)` gives a token; `after(token, error, result)` gets it back.

    Returns False if there is nothing of that name, which other releases of PyTorch may lack."""
    found = vars(owner).get(name) if isinstance(owner, type) else getattr(owner, name, None)
    if found is None:
        return False
    original = found.__func__ if isinstance(found, staticmethod) else found

    @functools.wraps(original)
    def hooked(*args, **kwargs):
        if watch.broken is not None:
            return original(*args, **kwargs)
        token = error = result = None
        try:
            token = before(args, kwargs)
        except Exception as failure:
            watch.fail(name, failure)
        try:
            result = original(*args, **kwargs)
            return result
        except BaseException as failure:
            error = failure
            raise
        finally:
            if token is not None and after is not None:
                try:
                    after(token, error, result)
                except Exception as failure:
                    watch.fail(name, failure)

    setattr(owner, name, staticmethod(hooked) if isinstance(found, staticmethod) else hooked)
    return True


def in_state(owner, name, state, only_outside=()):
    """Counts the time of owner.name to a state, unless the operation is in one of `only_outside`."""

    def before(args, kwargs):
        operation = current()
        if operation is None or operation.stack[-1] in only_outside:
            return None
        return operation, operation.enter(state)

    def after(token, error, result):
        token[0].leave(token[1])

    return around(owner, name, before, after)
