"""What drafters learn from: a target's own answers, in shards."""
