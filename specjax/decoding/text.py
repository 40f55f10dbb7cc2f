"""Text as it grows: whole characters only, and never the start of a stop string."""

from collections.abc import Sequence

from specjax import checkpoints


class GrowingText:
    """Turns tokens into text that is safe to show, and ends it at a stop string.

    Attributes:
      num_tokens: tokens taken in, up to the one that completed a stop string.
      stopped: whether a stop string was found.
      text: all text so far, the stop string and what follows it left out.
    """

    def __init__(
        self, tokenizer: checkpoints.Tokenizer, stop: Sequence[str] = ()
    ) -> None:
        self._characters = tokenizer.stream()
        self._stop = tuple(stop)
        self._shown = 0
        self.num_tokens = 0
        self.stopped = False
        self.text = ""

    @property
    def shown(self) -> str:
        """What was given out so far."""
        return self.text[: self._shown]

    def push(self, token: int) -> str:
        """Adds a token and returns the text that may be shown because of it."""
        self.num_tokens += 1
        self._grow(self._characters.push([token]))
        return self._show(len(self.text) - self._held())

    def skip(self) -> str:
        """Counts a token that is no text: a stop id."""
        self.num_tokens += 1
        return ""

    def finish(self) -> str:
        """Returns what was held back; no more tokens come."""
        self._grow(self._characters.finish())
        return self._show(len(self.text))

    def _grow(self, new: str) -> None:
        if self.stopped:
            return
        # A stop string that ends in the new text begins at most its length earlier.
        reach = max((len(stop) for stop in self._stop), default=0)
        start = max(len(self.text) - reach, 0)
        self.text += new
        found = [at for stop in self._stop if (at := self.text.find(stop, start)) >= 0]
        if found:
            self.stopped = True
            self.text = self.text[: min(found)]

    def _held(self) -> int:
        """Characters at the end that may turn out to begin a stop string."""
        if self.stopped:
            return 0
        held = 0
        for stop in self._stop:
            sizes = range(min(len(stop) - 1, len(self.text)), 0, -1)
            begun = (size for size in sizes if self.text.endswith(stop[:size]))
            held = max(held, next(begun, 0))
        return held

    def _show(self, upto: int) -> str:
        new = self.text[self._shown : upto]
        self._shown = max(self._shown, upto)
        return new
