-- Write the settings of a home's queues if the stored revisions are the given ones; else none.
-- KEYS: c a0 a1 w0 w1 v0 v1
-- ARGV: for each: queue, revision, settings, paused (1 or 0), partitions
--#include common
--#include news

for i = 1, #ARGV, 5 do
  local stored = call('HGET', KEYS[1], 'rev' .. ARGV[i]) or '0'
  if stored ~= ARGV[i + 1] then return 0 end
  if call('HEXISTS', KEYS[1], 'dropping' .. ARGV[i]) == 1 then return -1 end
  call('LLEN', key('w' .. ARGV[i])); call('XLEN', key('a' .. ARGV[i]))
  call('XLEN', key('v' .. ARGV[i]))
end
for i = 1, #ARGV, 5 do
  local flag = ARGV[i]
  local parts = tonumber(call('HGET', KEYS[1], 'parts') or 0)
  if ARGV[i + 1] ~= '0' then call('HDEL', KEYS[1], 'paused' .. flag) end
  call('HSET', KEYS[1], 'spec' .. flag, ARGV[i + 2], 'paused' .. flag, ARGV[i + 3],
    'rev' .. flag, num(ARGV[i + 1] + 1), 'parts', num(math.max(parts, tonumber(ARGV[i + 4]))))
  call('HSETNX', KEYS[1], 'seq', '100000000000000')
  redis.pcall('XGROUP', 'CREATE', key('a' .. flag), GROUP, '0', 'MKSTREAM')
  wake(flag)
  if ARGV[i + 1] ~= '0' then news(flag) end
end
return 1
