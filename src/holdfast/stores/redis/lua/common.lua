-- The beginning of every script on a home: a queue and its dead-letter queue, which share a slot.
-- KEYS[1] is the home's hash of settings and counters. Its other keys are named after it; each one
-- that a script touches is among its KEYS (a test watches). Queue 0 is the home, 1 its dead letters.
--
-- A script reads and compares first and writes last. Its first write is one that a server out of
-- memory still takes, but for enqueue, which is then refused whole.

local call = redis.call
local base = string.sub(KEYS[1], 1, -2)
local GROUP = 'holdfast'
local LANE = 2 ^ 48 -- in the score of a returned message, room for the places of one lane
local PROMOTE = 500 -- delayed messages that one script makes ready
local BYTES = 4194304 -- of bodies that one script carries; the caller asks for the rest

local function key(name) return base .. name end
local function num(n) return string.format('%.0f', n) end
local function lane_of(part, lane) return key('s' .. part .. '.' .. lane) end

-- HMGET of none is an error, and of many too long a list for Lua's stack.
local function hmget(name, fields)
  if #fields == 0 then return {} end
  return call('HMGET', key(name), unpack(fields))
end

-- Where a message is that does not lie in its lane as it was enqueued. Hash x:
--   F<token>                                   leased for the first time, from its lane
--   L|W flag part lane seq place attempts available first timeout entry token verb
--                                              leased again, or waiting in z or r
-- A token is seq.part.lane.call; of a waiting one it is that of its last lease, with the verb that
-- ended it. "-" stands for none. Numbers begin at 10^14: all have 15 digits, so text sorts as they do.
local ROW = '^([LW]) (%d) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+) (%S+) (%S+) (%S+)$'

local function strange() error('what is noted of a message was not written by Holdfast') end

local function read(text)
  if not text then strange() end
  if string.sub(text, 1, 1) == 'F' then
    local token = string.sub(text, 2)
    local seq, part, lane = string.match(token, '^(%d+)%.(%d+)%.(%d+)%.')
    if not seq then strange() end
    return {
      state = 'F', flag = '0', part = part, lane = lane, seq = seq, place = seq,
      attempts = '1', entry = seq, token = token, verb = '-',
    }
  end
  local row = {}
  row.state, row.flag, row.part, row.lane, row.seq, row.place, row.attempts, row.available,
    row.first, row.timeout, row.entry, row.token, row.verb = string.match(text, ROW)
  if not row.state then strange() end
  return row
end

local function written(row)
  return table.concat({
    row.state, row.flag, row.part, row.lane, row.seq, row.place, row.attempts, row.available,
    row.first, row.timeout, row.entry, row.token, row.verb,
  }, ' ')
end

local function call_of(token) return string.match(token, '^%d+%.%d+%.%d+%.(.*)$') end

local function score(lane, place) return num((9 - lane) * LANE + place) end

-- One element at most: whoever takes it looks, and passes it on if it leaves something behind.
local function wake(flag)
  local name = key('w' .. flag)
  if call('LLEN', name) == 0 then call('RPUSH', name, '1') end
end

-- Delayed messages whose time has come go to their place in line; how many there were.
local function promote(flag, now)
  local due = call('ZRANGEBYSCORE', key('z' .. flag), '-inf', now, 'LIMIT', 0, PROMOTE)
  if #due == 0 then return 0 end
  local ids = {}
  for i = 1, #due do ids[i] = string.sub(due[i], 16) end
  local rows, parts = hmget('x', ids), {}
  for i = 1, #due do
    rows[i] = read(rows[i])
    parts[rows[i].part] = true
  end
  for part in pairs(parts) do call('ZCARD', key('r' .. flag .. '.' .. part)) end
  call('ZREM', key('z' .. flag), unpack(due))
  for i = 1, #due do
    local row = rows[i]
    call('ZADD', key('r' .. flag .. '.' .. row.part), score(row.lane, row.place), ids[i])
  end
  return #due
end

-- The lanes in use of a home, and of each the partitions: only the home itself has streams.
local function lanes_of(flag, lanes, wanted)
  local used = {}
  if flag == '0' then
    for part, lane in string.gmatch(lanes or '', '(%d+)%.(%d+)') do
      if wanted == nil or wanted[part] then
        used[lane] = used[lane] or {}
        table.insert(used[lane], part)
      end
    end
  end
  return used
end

-- Up to where a lane has been leased, and how much of it is leased now.
local function progress(stream)
  for _, group in ipairs(call('XINFO', 'GROUPS', stream)) do
    if group[2] == GROUP then return group[8], group[6] end
  end
  error('NOGROUP ' .. stream)
end

-- What waits in one lane after a place, in order: {place, id, part, entry or nil, own time-out}.
local function line(flag, lane, parts, streams, after, limit)
  local found = {}
  for _, part in ipairs(parts) do
    local low, high = '(' .. score(lane, after), '(' .. score(lane - 1, 0)
    if after < 0 then low = score(lane, 0) end
    local name = key('r' .. flag .. '.' .. part)
    local back = call('ZRANGEBYSCORE', name, low, high, 'WITHSCORES', 'LIMIT', 0, limit)
    for i = 1, #back, 2 do
      found[#found + 1] = { back[i + 1] - (9 - lane) * LANE, back[i], part }
    end
  end
  for _, part in ipairs(streams or {}) do
    local stream = lane_of(part, lane)
    local last = progress(stream)
    if after >= 0 and tonumber(string.match(last, '^%d+')) < after then last = num(after) .. '-0' end
    for _, entry in ipairs(call('XRANGE', stream, '(' .. last, '+', 'COUNT', limit)) do
      local n = string.sub(entry[1], 1, 15)
      found[#found + 1] = { tonumber(n), entry[2][2], part, n, entry[2][4] }
    end
  end
  if #parts > 1 or (streams and #streams > 0) then
    table.sort(found, function(a, b) return a[1] < b[1] end)
  end
  for i = #found, limit + 1, -1 do found[i] = nil end
  return found
end

-- Bodies as far as BYTES go, read so many at a time.
local function bodies(ids, step)
  if #ids <= step then return hmget('m', ids) end
  local found, size = {}, 0
  for i = 1, #ids, step do
    local some = call('HMGET', key('m'), unpack(ids, i, math.min(i + step - 1, #ids)))
    for j = 1, #some do
      found[i + j - 1] = some[j]
      size = size + (some[j] and #some[j] or 0)
    end
    if size > BYTES then break end
  end
  return found
end
