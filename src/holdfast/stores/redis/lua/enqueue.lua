-- Store messages of one home, or of several homes of one slot.
-- Invariant: all are stored or none; an id that its home holds stays as it is; a receipt that is there
-- already stores nothing. With the first write refused (a full server) nothing is written.
-- KEYS: of each home c m w<q> and the lanes; x e z<q> v<q> r<q>.<part> if a message is not new or not yet
--       available; rn rv for a receipt; li0 li1 if an id is looked up in the log.
-- ARGV: now, receipt or "", then of each home: which of KEYS its c is, queues (0, 1 or 01), the name that
--       the queue must have (see expect.lua) or "", how many messages, and of each message three values:
--       its id, or "<id> <time>" if it is held as well if it finished at that time or later;
--       "F<part>.<lane>[ time-out]" for the end of a lane, else, as in rows.lua,
--       "W <flag> <part> <lane> <available> <attempts> <first> <time-out> <history>"; its body.
-- Answers: ok and 1 or 0 for each; kept and what the receipt says; gone, the queue and the home's number.
-- With a name given (a move, see moving.py), the receipt keeps the ids that were held, so that a repeated
-- move gets the same answer. Then no messages, and no receipt: the move was refused as a whole.
--#include common

local now, receipt = tonumber(ARGV[1]), ARGV[2]
local homes, looked, kept, from = {}, {}, false, 3

-- What will be written to is read before anything is written: it may be of another type.
local function look(command, name)
  name = key(name)
  if not looked[name] then call(command, name) end
  looked[name] = true
end

while from <= #ARGV do
  local c, flags, name, n = KEYS[tonumber(ARGV[from])], ARGV[from + 1], ARGV[from + 2], tonumber(ARGV[from + 3])
  base = string.sub(c, 1, -2)
  local known = call('HMGET', c, 'rev0', 'rev1', 'lanes')
  if receipt ~= '' then
    kept = call('HGET', key('rv'), receipt) or kept
    call('ZCARD', key('rn'))
  end
  if name ~= '' then
    if kept then return { 'kept', kept } end
    if n == 0 or call('HGET', c, 'born' .. flags) ~= name then return { 'gone', flags, #homes } end
  end
  for flag in string.gmatch(flags, '%d') do
    if not known[flag + 1] then return { 'gone', flag, #homes } end
    call('LLEN', key('w' .. flag))
  end
  local ids, heads, blobs, since = {}, {}, {}, nil
  for i = 1, n do
    local at = from + 1 + 3 * i
    ids[i], heads[i], blobs[i] = ARGV[at], ARGV[at + 1], ARGV[at + 2]
    if #ids[i] > 36 then
      since = since or {}
      since[i], ids[i] = tonumber(string.sub(ids[i], 38)), string.sub(ids[i], 1, 36)
    end
  end
  local held, fresh, set, opened, lanes = hmget('m', ids), {}, {}, {}, known[3] or ' '
  for i, at in pairs(since or {}) do
    for flag = 0, 1 do
      -- The last entry is the latest, and begins with its time.
      local entries = not held[i] and call('HGET', key('li' .. flag), ids[i])
      if entries and tonumber(string.match(entries, '(%d+)%-%d+$')) >= at then held[i] = true end
    end
  end
  local refused, parts = nil, nil
  if name ~= '' then refused, parts = {}, tonumber(call('HGET', c, 'parts')) end
  for i = 1, n do
    -- A move may name a partition that does not exist, where nobody would ever look.
    if parts and string.match(heads[i], '^W %d (%d+)') + 0 >= parts then held[i] = true end
    if not held[i] and not fresh[ids[i]] then
      fresh[ids[i]] = i
      set[#set + 1] = ids[i]
      set[#set + 1] = blobs[i]
      if string.sub(heads[i], 1, 1) == 'F' then
        local lane = string.match(heads[i], '^F(%d+%.%d+)')
        look('XLEN', 's' .. lane)
        if not string.find(lanes, ' ' .. lane .. ' ', 1, true) then
          if call('EXISTS', key('s' .. lane)) == 1 then error('BUSYGROUP ' .. key('s' .. lane)) end
          lanes, opened[#opened + 1] = lanes .. lane .. ' ', key('s' .. lane)
        end
      else
        local flag, part = string.match(heads[i], '^W (%d) (%d+) ')
        look('HLEN', 'x'); look('HLEN', 'e'); look('ZCARD', 'z' .. flag); look('XLEN', 'v' .. flag)
        look('ZCARD', 'r' .. flag .. '.' .. part)
      end
    elseif refused then
      refused[#refused + 1] = ids[i]
    end
  end
  homes[#homes + 1] = { base, flags, n, ids, heads, fresh, set, lanes, opened, refused }
  from = from + 4 + 3 * n
end
if kept then return { 'kept', kept } end

local answers, first, put = {}, 0, nil
for _, home in ipairs(homes) do
  local flags, n, ids, heads, fresh, set, lanes, opened, refused = unpack(home, 2, 10)
  base = home[1]
  local c = key('c')
  local seq = call('HINCRBY', c, 'seq', n) - n
  if #opened > 0 then call('HSET', c, 'lanes', lanes) end
  for _, stream in ipairs(opened) do call('XGROUP', 'CREATE', stream, GROUP, '0', 'MKSTREAM') end
  if receipt ~= '' then
    call('HSET', key('rv'), receipt, '1 ' .. num(now) .. ' ' .. table.concat(refused or {}, ' '))
    call('ZADD', key('rn'), 0, receipt)
  end
  if #set > 0 then call('HSET', key('m'), unpack(set)) end
  local back = nil
  for i = 1, n do
    local head = heads[i]
    if fresh[ids[i]] ~= i then
      answers[first + i] = 0
    else
      answers[first + i] = 1
      local lane, timeout = string.match(head, '^F(%d+%.%d+) ?(.*)$')
      if lane then
        if timeout == '' then
          call('XADD', key('s' .. lane), num(seq + i) .. '-0', 'i', ids[i])
        else
          call('XADD', key('s' .. lane), num(seq + i) .. '-0', 'i', ids[i], 't', timeout)
        end
      else
        if not put then
          --#include rows
          --#include stand
          put = stand
        end
        local row, history = { state = 'W', entry = '-', token = '-', verb = '-' }, nil
        row.flag, row.part, row.lane, row.available, row.attempts, row.first, row.timeout, history =
          string.match(head, '^W (%d) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+) (.*)$')
        row.seq = num(seq + i)
        row.place = row.seq
        put(row, ids[i], now)
        if history ~= '' then call('HSET', key('e'), ids[i], history) end
        back = back or {}
        back[row.flag] = true
      end
    end
  end
  for flag in pairs(back or {}) do
    --#include news
    news(flag)
  end
  if n > 0 then
    for flag in string.gmatch(flags, '%d') do wake(flag) end
  end
  first = first + n
end
return { 'ok', answers }
