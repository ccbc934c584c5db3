-- Read messages, at one moment.
-- KEYS: as of a lease from all partitions; to find: c m x e k and both d.
-- ARGV: queue, partitions, what, how many bodies to read at a time, then:
--   find: ids, in the queue and its dead-letter queue | overdue: now, limit | batch: batch, after, limit |
--   leased: deadline, seq, limit | delayed: available, seq, limit, now |
--   ready: lane, place, limit, now, bodies wanted (1 or 0)
-- Answers: the end of the line, ids, two numbers for each that it is ordered by, x, e, k and as many bodies
-- as fit.
-- Invariant: changes nothing but that due messages take their place in line; 'more' asks for another call,
-- as a page of what is ready must not miss any that are due.
--#include common
--#include queue
--#include rows
--#include promote
--#include line
--#include bodies

local what = ARGV[3]
local ids, first, second, more = {}, {}, {}, false

-- How many members of a set lie up to (score, seq).
local function rank(name, at, seq)
  local low, high = call('ZCOUNT', name, '-inf', '(' .. at), call('ZCOUNT', name, '-inf', at)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local member = call('ZRANGE', name, middle, middle)[1]
    if tonumber(string.sub(member, 1, 15)) > seq then high = middle else low = middle + 1 end
  end
  return low
end

local function members(found)
  for i = 1, #found, 2 do
    ids[#ids + 1] = string.sub(found[i], 16, 51)
    first[#first + 1] = found[i + 1]
    second[#second + 1] = string.sub(found[i], 1, 15)
  end
end

if what == 'find' then
  for i = 5, #ARGV do ids[i - 4] = ARGV[i] end
elseif what == 'overdue' then
  members(call('ZRANGEBYSCORE', key('d' .. flag), '-inf', ARGV[5], 'WITHSCORES', 'LIMIT', 0, ARGV[6]))
elseif what == 'batch' then
  local from = ARGV[6] == '' and '[' .. ARGV[5] .. ' ' or '(' .. ARGV[5] .. ' ' .. ARGV[6] .. '!'
  local found = call('ZRANGEBYLEX', key('b' .. flag), from, '(' .. ARGV[5] .. '!', 'LIMIT', 0, ARGV[7])
  for i, name in ipairs(found) do
    local token = string.match(name, '%S+$')
    ids[i], second[i] = string.sub(token, 16, 51), string.sub(token, 1, 15)
    first[i] = call('ZSCORE', key('d' .. flag), token)
  end
elseif what == 'leased' or what == 'delayed' then
  local name = key((what == 'leased' and 'd' or 'z') .. flag)
  local from = rank(name, ARGV[5], tonumber(ARGV[6]))
  if what == 'delayed' then from = math.max(from, call('ZCOUNT', name, '-inf', ARGV[8])) end
  members(call('ZRANGE', name, from, from + ARGV[7] - 1, 'WITHSCORES'))
else
  more = promote(flag, tonumber(ARGV[8])) == PROMOTE
  local parts, used, limit = {}, lanes_of(flag, known[3]), tonumber(ARGV[7])
  for part = 0, known[2] - 1 do parts[#parts + 1] = num(part) end
  local from, after = tonumber(ARGV[5]), tonumber(ARGV[6])
  for at = math.max(from, 0), 9 do
    if #ids >= limit or more then break end
    local lane = num(9 - at)
    for _, one in ipairs(line(flag, lane, parts, used[lane], at == from and after or -1, limit - #ids)) do
      ids[#ids + 1], first[#first + 1], second[#second + 1] = one[2], num(at), num(one[1])
    end
  end
end
local states, past, calls = hmget('x', ids), hmget('e', ids), {}
local noted = what ~= 'find' and (what ~= 'ready' or flag == '1') -- x tells of all that stands there
for i = 1, #ids do
  local row = (states[i] or noted) and read(states[i], ids[i])
  local held = row and (row.state == 'F' or row.state == 'L')
  calls[i] = held and call('HGET', key('k'), call_of(row.token)) or false
  if what == 'find' then first[i] = held and call('ZSCORE', key('d' .. row.flag), row.token) or false end
end
local blobs = what == 'ready' and ARGV[9] == '0' and {} or bodies(ids, tonumber(ARGV[4]))
return { more and 'more' or 'ok', known[5] or '0', ids, first, second, states, past, calls, blobs }
