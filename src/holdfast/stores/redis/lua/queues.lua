-- Write the settings of queues.
-- Invariant: all are written or, if a stored revision is not the given one, none.
-- KEYS: of each home c a0 a1 w0 w1 v0 v1
-- ARGV: of each queue: which of KEYS its c is, queue, revision, settings, paused (1 or 0), partitions
-- Answers 1; 0 if a revision differs; -1 if a queue of this name is still being deleted.
--#include common
--#include news

local WIDTH = 6
for i = 1, #ARGV, WIDTH do
  local c, flag = KEYS[tonumber(ARGV[i])], ARGV[i + 1]
  base = string.sub(c, 1, -2)
  if (call('HGET', c, 'rev' .. flag) or '0') ~= ARGV[i + 2] then return 0 end
  if call('HEXISTS', c, 'dropping' .. flag) == 1 then return -1 end
  call('LLEN', key('w' .. flag)); call('XLEN', key('a' .. flag)); call('XLEN', key('v' .. flag))
end
for i = 1, #ARGV, WIDTH do
  local at, flag, revision, spec, paused, parts = unpack(ARGV, i, i + WIDTH - 1)
  local c = KEYS[tonumber(at)]
  base = string.sub(c, 1, -2)
  local most = math.max(tonumber(call('HGET', c, 'parts') or 0), tonumber(parts))
  if revision ~= '0' then call('HDEL', c, 'paused' .. flag) end
  call('HSET', c, 'spec' .. flag, spec, 'paused' .. flag, paused,
    'rev' .. flag, num(revision + 1), 'parts', num(most))
  call('HSETNX', c, 'seq', '100000000000000')
  redis.pcall('XGROUP', 'CREATE', key('a' .. flag), GROUP, '0', 'MKSTREAM')
  wake(flag)
  if revision ~= '0' then news(flag) end -- it may just have been resumed
end
return 1
