-- Append events.
-- KEYS: counter, stream. ARGV: events
-- Invariant: each has the next number; about the newest thousand are kept.
redis.call('XTRIM', KEYS[2], 'MAXLEN', '~', 1000) -- a server out of memory accepts it, and then the rest
for i = 1, #ARGV do
  local n = redis.call('INCR', KEYS[1])
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', 1000, string.format('%.0f-0', n), 'e', ARGV[i])
end
return #ARGV
