-- Store messages, all or none. Each is three values: its id; where it goes; its body.
-- "F<part>.<lane>[ time-out]": to the end of its lane. Anything else, see x in common.lua:
-- "W <flag> <part> <lane> <available> <attempts> <first> <time-out> <history>".
-- KEYS: c m w0 and the lanes; x e z0 w1 z1 and what returns, if one needs them; rn rv for a receipt.
-- ARGV: now, queues (0, 1 or 01), receipt or "", then the messages.
--#include common

local now, flags, receipt = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local known = call('HMGET', KEYS[1], 'rev0', 'rev1', 'lanes')
for flag in string.gmatch(flags, '%d') do
  if not known[flag + 1] then return { 'gone', flag } end
  call('LLEN', key('w' .. flag))
end
if receipt ~= '' then
  if call('HEXISTS', key('rv'), receipt) == 1 then return { 'kept' } end
  call('ZCARD', key('rn'))
end

local ids, heads, blobs, n = {}, {}, {}, 0
for i = 4, #ARGV, 3 do
  n = n + 1
  ids[n], heads[n], blobs[n] = ARGV[i], ARGV[i + 1], ARGV[i + 2]
end
local held, fresh, set, opened, looked = hmget('m', ids), {}, {}, {}, {}
local lanes = known[3] or ' '

-- What it will write to is looked at before anything is written.
local function look(command, name)
  if not looked[name] then call(command, key(name)) end
  looked[name] = true
end

for i = 1, n do
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
      look('HLEN', 'x'); look('HLEN', 'e'); look('ZCARD', 'z' .. flag)
      look('ZCARD', 'r' .. flag .. '.' .. part)
    end
  end
end
local seq = call('HINCRBY', KEYS[1], 'seq', n) - n
if #opened > 0 then call('HSET', KEYS[1], 'lanes', lanes) end
for _, stream in ipairs(opened) do call('XGROUP', 'CREATE', stream, GROUP, '0', 'MKSTREAM') end
if receipt ~= '' then
  call('HSET', key('rv'), receipt, '1 ' .. num(now) .. ' ')
  call('ZADD', key('rn'), 0, receipt)
end
if #set > 0 then call('HSET', key('m'), unpack(set)) end
local answers = {}
for i = 1, n do
  if fresh[ids[i]] == i then
    answers[i] = 1
    local head = heads[i]
    local lane, timeout = string.match(head, '^F(%d+%.%d+) ?(.*)$')
    if lane then
      if timeout == '' then
        call('XADD', key('s' .. lane), num(seq + i) .. '-0', 'i', ids[i])
      else
        call('XADD', key('s' .. lane), num(seq + i) .. '-0', 'i', ids[i], 't', timeout)
      end
    else
      local flag, part, to, available, attempts, first, own, history =
        string.match(head, '^W (%d) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+) (.*)$')
      local number = num(seq + i)
      call('HSET', key('x'), ids[i], table.concat({ -- as in rows.lua
        'W', flag, part, to, number, number, attempts, available, first, own, '-', '-', '-',
      }, ' '))
      if history ~= '' then call('HSET', key('e'), ids[i], history) end
      if tonumber(available) > now then
        call('ZADD', key('z' .. flag), available, number .. ids[i])
      else
        call('ZADD', key('r' .. flag .. '.' .. part), score(to, number), ids[i])
      end
    end
  else
    answers[i] = 0
  end
end
for flag in string.gmatch(flags, '%d') do wake(flag) end
return { 'ok', answers }
