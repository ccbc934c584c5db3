-- Take, renew or give up a named lease, kept as "epoch expires owner".
-- KEYS: the hash of claims; of a claim on a partition, the home's c
-- ARGV: name, owner, ttl, now
-- Answers the epoch; 0 while another owner's claim holds, or if there is no such home.
-- Invariant: one owner at a time, and a greater epoch for each that follows; no claim outlives its home.

if KEYS[2] and redis.call('EXISTS', KEYS[2]) == 0 then return 0 end
local epoch, expires, owner = string.match(
  redis.call('HGET', KEYS[1], ARGV[1]) or '0 0 ', '^(%d+) (%d+) (.*)$')
local now, ttl = tonumber(ARGV[4]), tonumber(ARGV[3])
local live = tonumber(expires) > now
if live and owner ~= ARGV[2] then return 0 end
if not live then epoch = epoch + 1 end
redis.call('HDEL', KEYS[1], ARGV[1]) -- a server out of memory accepts it, and then the rest
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f %.0f %s', epoch, now + ttl, ARGV[2]))
return tonumber(epoch)
