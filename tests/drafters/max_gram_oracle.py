"""Max-Gram by slices of lists, for one row."""

NGRAM = 16


def copied(searched, source, text, k, max_ngram, recent):
    """What follows, in ``source``, the longest suffix of ``text`` in ``searched``."""
    for size in range(min(max_ngram, len(text)), 0, -1):
        ends = [
            end
            for end in range(size, len(searched) + 1)
            if searched[end - size : end] == text[-size:]
        ]
        if ends:
            end = ends[-1] if recent else ends[0]
            return source[end : end + k]
    return []


def oracle(text, k, *, prompt=None, successor=None, max_ngram=NGRAM, recent=False):
    """Steps A, B and C by slices of lists; two buffers where there is a prompt."""
    draft = []
    for step in "AB":
        if len(draft) < k:
            grown = text + draft
            # One buffer: the text itself, but not the suffix where it stands.
            searched, source = grown[:-1], grown
            if prompt is not None:
                first = prompt if step == "A" else grown[:-1]
                searched = source = first + grown[:-1]
            found = copied(searched, source, grown, k, max_ngram, recent)
            draft = (draft + found)[:k]
    while successor is not None and len(draft) < k:
        after = successor[(text + draft)[-1]]
        if after < 0:
            break
        draft.append(after)
    return draft
