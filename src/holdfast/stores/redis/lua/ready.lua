-- Of each of several queues: how much is ready and, where nothing is, when the next delayed message comes.
-- A paused queue has nothing ready.
-- KEYS: of each queue c z d a w, its r, and the lanes (s) that are in use.
-- ARGV: now, then of each queue: which of KEYS its c is, queue, partitions, lanes in use
-- Invariant: changes nothing but that an empty queue loses the wake-up mark that was left on it. Otherwise
-- every drained queue would wake a consumer that waits for all of them.
--#include common

local now, answers, stale = tonumber(ARGV[1]), {}, {}
for i = 2, #ARGV, 4 do
  local c, flag, parts, lanes = KEYS[tonumber(ARGV[i])], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  base = string.sub(c, 1, -2)
  local known = call('HMGET', c, 'rev' .. flag, 'parts', 'lanes', 'paused' .. flag)
  local answer
  if not known[1] then
    answer = { 'gone' }
  elseif known[2] ~= parts or (flag == '0' and (known[3] or '') ~= lanes) then
    answer = { 'changed', known[2], known[3] or '' }
  elseif known[4] == '1' then
    answer = { 'ok', 0, '' }
  else
    local ready = call('XLEN', key('a' .. flag)) - call('ZCARD', key('d' .. flag))
    ready = ready + call('ZCOUNT', key('z' .. flag), '-inf', num(now))
    for part = 0, parts - 1 do ready = ready + call('ZCARD', key('r' .. flag .. '.' .. num(part))) end
    for name in string.gmatch(flag == '0' and lanes or '', '%S+') do
      ready = ready + call('XLEN', key('s' .. name))
    end
    local next = {}
    if ready <= 0 then
      stale[#stale + 1] = key('w' .. flag)
      next = call('ZRANGEBYSCORE', key('z' .. flag), '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    end
    answer = { 'ok', ready, next[2] or '' }
  end
  answers[#answers + 1] = answer
end
for _, name in ipairs(stale) do call('LPOP', name) end
return answers
